package store

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// maxImage is the largest database in bytes that is kept as one image; a larger
// one is kept in pages.
const maxImage = 64 << 10

const imageZstd = 1 // form of an image: a zstd frame follows

// coder has the one encoder and decoder of images; both may be used by many.
var coder struct {
	once sync.Once
	enc  *zstd.Encoder
	dec  *zstd.Decoder
}

func initCoder() {
	coder.once.Do(func() {
		// Without options that can be wrong there is no error.
		coder.enc, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(maxImage), zstd.WithLowerEncoderMem(true))
		coder.dec, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxImage), zstd.WithDecoderLowmem(true))
	})
}

func encodeImage(image []byte) []byte {
	initCoder()
	return coder.enc.EncodeAll(image, append(make([]byte, 0, len(image)/4+64), imageZstd))
}

func decodeImage(b []byte, size int) ([]byte, error) {
	initCoder()
	if len(b) < 1 || b[0] != imageZstd {
		return nil, fmt.Errorf("%w: an image of no known form", errMalformedBase)
	}
	if size > maxImage {
		return nil, fmt.Errorf("%w: an image of %d bytes", errMalformedBase, size)
	}
	image, err := coder.dec.DecodeAll(b[1:], make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformedBase, err)
	}
	if len(image) != size {
		return nil, fmt.Errorf("%w: an image of %d bytes, %d are said", errMalformedBase, len(image), size)
	}
	return image, nil
}
