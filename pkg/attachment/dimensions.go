package attachment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	_ "image/jpeg" // for image.DecodeConfig
	_ "image/png"
)

// maxPixels bounds an image: a small file can hold a very large one, which the model server decodes.
const maxPixels = 40_000_000

// dimensions returns width and height that the header of an image of an accepted type states. The pixels are not
// decoded.
func dimensions(kind string, data []byte) (width, height int, err error) {
	if kind == "image/webp" {
		return webpDimensions(data)
	}
	c, _, err := image.DecodeConfig(bytes.NewReader(data))
	return c.Width, c.Height, err
}

// webpDimensions reads width and height from the header of the three forms of WebP: extended, lossless and lossy. data
// must be known to be WebP: only the name of the first chunk is checked. It fails for less than 30 bytes and for
// another chunk. A lossy header may state 0.
func webpDimensions(data []byte) (width, height int, err error) {
	if len(data) < 30 {
		return 0, 0, errors.New("its header is incomplete")
	}
	switch string(data[12:16]) {
	case "VP8X":
		read24 := func(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
		return read24(data[24:]) + 1, read24(data[27:]) + 1, nil
	case "VP8L":
		bits := binary.LittleEndian.Uint32(data[21:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1, nil
	case "VP8 ":
		return int(binary.LittleEndian.Uint16(data[26:]) & 0x3fff), int(binary.LittleEndian.Uint16(data[28:]) & 0x3fff),
			nil
	}
	return 0, 0, errors.New("its header is unknown")
}
