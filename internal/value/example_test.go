package value_test

import (
	"fmt"
	"time"

	"github.com/limpet-dev/limpet/internal/value"
)

func Example() {
	type Item struct {
		Name  string    `limpet:"name"`
		Count int       `limpet:"count"`
		Since time.Time `limpet:"since"`
		note  string
	}
	b, err := value.Marshal(Item{"mug", 2, time.UnixMilli(1000), "not carried"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%x\n", b)
	text, err := value.ToJSON(b)
	fmt.Println(string(text), err)

	var back Item
	fmt.Println(value.Unmarshal(b, &back), back.Name, back.Count, back.Since, back.note == "")
	// Output:
	// 01a3646e616d65636d756765636f756e74026573696e6365d94c001903e8
	// {"name":"mug","count":2,"since":{"$date":"1970-01-01T00:00:01.000Z"}} <nil>
	// <nil> mug 2 1970-01-01 00:00:01 +0000 UTC true
}
