package store

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// maxImage is the largest database in bytes that is kept as one image; a larger
// one is kept in pages.
const maxImage = 64 << 10

const imageZstd = 1 // form of an image: a zstd frame follows

// imageCoder encodes and decodes images. It may be used by many.
type imageCoder struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newImageCoder() (c imageCoder, err error) {
	if c.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(maxImage), zstd.WithLowerEncoderMem(true)); err != nil {
		return c, fmt.Errorf("make a zstd encoder: %w", err)
	}
	if c.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxImage), zstd.WithDecoderLowmem(true)); err != nil {
		return c, fmt.Errorf("make a zstd decoder: %w", err)
	}
	return c, nil
}

func (c imageCoder) close() {
	_ = c.enc.Close() // there is no stream to end
	c.dec.Close()
}

func (c imageCoder) encode(image []byte) []byte {
	return c.enc.EncodeAll(image, append(make([]byte, 0, len(image)/4+64), imageZstd))
}

func (c imageCoder) decode(b []byte, size int) ([]byte, error) {
	if len(b) < 1 || b[0] != imageZstd {
		return nil, fmt.Errorf("%w: an image of no known form", errMalformedBase)
	}
	if size > maxImage {
		return nil, fmt.Errorf("%w: an image of %d bytes", errMalformedBase, size)
	}
	image, err := c.dec.DecodeAll(b[1:], make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformedBase, err)
	}
	if len(image) != size {
		return nil, fmt.Errorf("%w: an image of %d bytes, %d are said", errMalformedBase, len(image), size)
	}
	return image, nil
}
