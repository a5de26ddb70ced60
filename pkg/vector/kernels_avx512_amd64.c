//go:build cgo && !windows

#include "kernels.h"

#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")))

// codes16 is sixteen codes from their two planes.
AVX512 static inline __m512i codes16(const uint8_t *high, const int8_t *low) {
	__m512i h = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)high));
	__m512i l = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)low));
	return _mm512_add_epi32(_mm512_slli_epi32(h, 8), _mm512_sub_epi32(l, _mm512_set1_epi32(32768)));
}

AVX512 long cvec_quantize_avx512(const float *src, long n, long dims, long stride, uint8_t *high, int8_t *low, float *scale,
                                 float *err) {
	const __m512i positive = _mm512_set1_epi32(0x7fffffff);
	long whole = dims & ~15L;
	__mmask16 tail = (__mmask16)((1u << (dims - whole)) - 1);
	for (long r = 0; r < n; r++, src += dims, high += stride, low += stride) {
		__m512i top = _mm512_and_si512(_mm512_maskz_loadu_epi32(tail, src + whole), positive);
		for (long i = 0; i < whole; i += 16) {
			top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_loadu_si512(src + i), positive));
		}
		int32_t bits = _mm512_reduce_max_epi32(top);
		float most;
		memcpy(&most, &bits, 4);
		if (bits >= 0x7f800000 || most < CVEC_TINY) {
			return r;
		}
		__m512 f = _mm512_set1_ps(CVEC_CODE / most);
		__m512i codes = _mm512_setzero_si512(), rest = _mm512_setzero_si512();
		for (long i = 0; i < dims; i += 16) {
			__m512 v = i < whole ? _mm512_loadu_ps(src + i) : _mm512_maskz_loadu_ps(tail, src + i);
			__m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(v, f));
			__m512i h = _mm512_srli_epi32(_mm512_add_epi32(c, _mm512_set1_epi32(32896)), 8);
			__m512i l = _mm512_srai_epi32(_mm512_slli_epi32(c, 24), 24);
			__m512i odd = _mm512_srli_epi64(c, 32);
			codes = _mm512_add_epi64(codes, _mm512_mul_epi32(c, c));
			codes = _mm512_add_epi64(codes, _mm512_mul_epi32(odd, odd));
			rest = _mm512_add_epi32(rest, _mm512_mullo_epi32(l, l));
			_mm_storeu_si128((__m128i *)(high + i), _mm512_cvtepi32_epi8(h)); // stride has room for the whole sixteen
			_mm_storeu_si128((__m128i *)(low + i), _mm512_cvtepi32_epi8(l));
		}
		if (stride > dims) {
			memset(high + dims, 128, stride - dims);
			memset(low + dims, 0, stride - dims);
		}
		cvec_row(_mm512_reduce_add_epi64(codes), _mm512_reduce_add_epi32(rest), scale + r, err + r);
	}
	return n;
}

// half adds the upper half of a vector to the lower.
AVX512 static inline __m256i half(__m512i v) {
	return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
}

AVX512 void cvec_dots_avx512(const uint8_t *high, long n, long stride, const int16_t *q16, const int8_t *q8, int32_t bias,
                             int32_t *dots) {
	(void)q16;
	const int8_t *q8low = q8 + stride;
	long r = 0;
	for (; r + 4 <= n; r += 4, high += 4 * stride) { // four rows share what is loaded of the query
		__m512i h0 = _mm512_setzero_si512(), h1 = h0, h2 = h0, h3 = h0, l0 = h0, l1 = h0, l2 = h0, l3 = h0;
		for (long i = 0; i < stride; i += 64) {
			__m512i qh = _mm512_loadu_si512(q8 + i), ql = _mm512_loadu_si512(q8low + i);
#define STEP(h, l, row)                                                                                                   \
	do {                                                                                                                  \
		__m512i v = _mm512_loadu_si512(high + (row)*stride + i);                                                          \
		h = _mm512_dpbusd_epi32(h, v, qh);                                                                                \
		l = _mm512_dpbusd_epi32(l, v, ql);                                                                                \
	} while (0)
			STEP(h0, l0, 0);
			STEP(h1, l1, 1);
			STEP(h2, l2, 2);
			STEP(h3, l3, 3);
		}
		__m256i s0 = half(_mm512_add_epi32(_mm512_slli_epi32(h0, 8), l0));
		__m256i s1 = half(_mm512_add_epi32(_mm512_slli_epi32(h1, 8), l1));
		__m256i s2 = half(_mm512_add_epi32(_mm512_slli_epi32(h2, 8), l2));
		__m256i s3 = half(_mm512_add_epi32(_mm512_slli_epi32(h3, 8), l3));
		__m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(s0, s1), _mm256_hadd_epi32(s2, s3));
		__m128i d = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
		_mm_storeu_si128((__m128i *)(dots + r), _mm_sub_epi32(d, _mm_set1_epi32(bias)));
	}
	for (; r < n; r++, high += stride) {
		__m512i h = _mm512_setzero_si512(), l = h;
		for (long i = 0; i < stride; i += 64) {
			__m512i qh = _mm512_loadu_si512(q8 + i), ql = _mm512_loadu_si512(q8low + i);
			STEP(h, l, 0);
		}
		__m256i s = half(_mm512_add_epi32(_mm512_slli_epi32(h, 8), l));
		__m128i d = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
		d = _mm_add_epi32(d, _mm_shuffle_epi32(d, 0x4e));
		d = _mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1));
		dots[r] = _mm_cvtsi128_si32(_mm_sub_epi32(d, _mm_set1_epi32(bias)));
	}
#undef STEP
}

AVX512 void cvec_score_avx512(const uint8_t *high, const int8_t *low, const float *scale, long stride, const float *q,
                              const uint32_t *rows, long n, float *out) {
	for (long r = 0; r < n; r++) {
		const uint8_t *h = high + (size_t)rows[r] * stride;
		const int8_t *l = low + (size_t)rows[r] * stride;
		if (r + 2 < n) { // the rows lie anywhere: ask for those to come
			size_t next = (size_t)rows[r + 2] * stride;
			for (long i = 0; i < stride; i += 64) {
				_mm_prefetch((const char *)high + next + i, _MM_HINT_T0);
				_mm_prefetch((const char *)low + next + i, _MM_HINT_T0);
			}
		}
		__m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
		for (long i = 0; i < stride; i += 64) {
			s0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes16(h + i, l + i)), _mm512_loadu_ps(q + i), s0);
			s1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes16(h + i + 16, l + i + 16)), _mm512_loadu_ps(q + i + 16), s1);
			s2 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes16(h + i + 32, l + i + 32)), _mm512_loadu_ps(q + i + 32), s2);
			s3 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes16(h + i + 48, l + i + 48)), _mm512_loadu_ps(q + i + 48), s3);
		}
		__m512 s = _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
		out[r] = _mm512_reduce_add_ps(s) * scale[rows[r]];
	}
}
