//go:build cgo

#include "kernels.h"

#include <string.h>

// Plain C, written so that a compiler makes vector instructions of it where the processor always has them (as on arm64).

// nearest rounds to the nearest whole number, halves to the even one.
static inline float nearest(float v) {
#ifdef __SSE2__
	// Without SSE4 there is no instruction for it. Adding 1.5 * 2^23 leaves no room for a fraction.
	return v + 12582912.0f - 12582912.0f;
#else
	return __builtin_rintf(v);
#endif
}

long cvec_quantize_plain(const float *src, long n, long dims, long stride, uint8_t *high, int8_t *low, float *scale,
                         float *err) {
	for (long r = 0; r < n; r++, src += dims, high += stride, low += stride) {
		// Compared as integers the numbers that are none come out above infinity.
		uint32_t top = 0;
		for (long i = 0; i < dims; i++) {
			uint32_t b;
			memcpy(&b, src + i, 4);
			b &= 0x7fffffff;
			top = b > top ? b : top;
		}
		float most;
		memcpy(&most, &top, 4);
		if (top >= 0x7f800000 || most < CVEC_TINY) {
			return r;
		}
		float f = CVEC_CODE / most;
		int64_t codes = 0;
		int32_t rest = 0;
		for (long i = 0; i < dims; i++) {
			int32_t c = (int32_t)nearest(src[i] * f);
			int32_t l = (int8_t)(c & 255);
			high[i] = (uint8_t)((c + 32896) >> 8);
			low[i] = (int8_t)l;
			codes += c * c;
			rest += l * l;
		}
		memset(high + dims, 128, stride - dims);
		memset(low + dims, 0, stride - dims);
		cvec_row(codes, rest, scale + r, err + r);
	}
	return n;
}

void cvec_dots_plain(const uint8_t *high, long n, long stride, const int16_t *q16, const int8_t *q8, int32_t bias,
                     int32_t *dots) {
	(void)q8;
	for (long r = 0; r < n; r++, high += stride) {
		uint32_t sum = 0; // it wraps on the way; what is left after the bias fits
		for (long i = 0; i < stride; i++) {
			sum += (uint32_t)((int32_t)high[i] * q16[i]);
		}
		dots[r] = (int32_t)(sum - (uint32_t)bias);
	}
}

void cvec_score_plain(const uint8_t *high, const int8_t *low, const float *scale, long stride, const float *q,
                      const uint32_t *rows, long n, float *out) {
	for (long r = 0; r < n; r++) {
		const uint8_t *h = high + (size_t)rows[r] * stride;
		const int8_t *l = low + (size_t)rows[r] * stride;
		float lane[16] = {0}; // apart, so that the sums can run side by side
		for (long i = 0; i < stride; i += 16) {
			for (int j = 0; j < 16; j++) {
				lane[j] += (float)(h[i + j] * 256 + l[i + j] - 32768) * q[i + j];
			}
		}
		float sum = 0;
		for (int j = 0; j < 16; j++) {
			sum += lane[j];
		}
		out[r] = sum * scale[rows[r]];
	}
}

// The doors: they choose the level.

int cvec_has(int level) {
	switch (level) {
	case CVEC_PLAIN:
		return 1;
#ifdef CVEC_X86
	case CVEC_AVX2:
		__builtin_cpu_init();
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	case CVEC_AVX512:
		__builtin_cpu_init();
		return cvec_has(CVEC_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512vnni");
#endif
	}
	return 0;
}

#ifdef CVEC_X86
#define CVEC_CALL(kernel, ...)                                                                                            \
	switch (level) {                                                                                                      \
	case CVEC_AVX512:                                                                                                     \
		return cvec_##kernel##_avx512(__VA_ARGS__);                                                                       \
	case CVEC_AVX2:                                                                                                       \
		return cvec_##kernel##_avx2(__VA_ARGS__);                                                                         \
	default:                                                                                                              \
		return cvec_##kernel##_plain(__VA_ARGS__);                                                                        \
	}
#else
#define CVEC_CALL(kernel, ...)                                                                                            \
	(void)level;                                                                                                          \
	return cvec_##kernel##_plain(__VA_ARGS__);
#endif

long cvec_quantize(int level, const float *src, long n, long dims, long stride, uint8_t *high, int8_t *low, float *scale,
                   float *err) {
	CVEC_CALL(quantize, src, n, dims, stride, high, low, scale, err)
}

void cvec_dots(int level, const uint8_t *high, long n, long stride, const int16_t *q16, const int8_t *q8, int32_t bias,
               int32_t *dots) {
	CVEC_CALL(dots, high, n, stride, q16, q8, bias, dots)
}

void cvec_score(int level, const uint8_t *high, const int8_t *low, const float *scale, long stride, const float *q,
                const uint32_t *rows, long n, float *out) {
	CVEC_CALL(score, high, low, scale, stride, q, rows, n, out)
}
