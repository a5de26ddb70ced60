//go:build cgo && !windows

#include "kernels.h"

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline int32_t sum32(__m256i v) {
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

AVX2 static inline int64_t sum64(__m256i v) {
	__m128i s = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	return _mm_cvtsi128_si64(_mm_add_epi64(s, _mm_unpackhi_epi64(s, s)));
}

// codes8 is eight codes from their two planes.
AVX2 static inline __m256i codes8(const uint8_t *high, const int8_t *low) {
	__m256i h = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)high));
	__m256i l = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)low));
	return _mm256_add_epi32(_mm256_slli_epi32(h, 8), _mm256_sub_epi32(l, _mm256_set1_epi32(32768)));
}

AVX2 long cvec_quantize_avx2(const float *src, long n, long dims, long stride, uint8_t *high, int8_t *low, float *scale,
                             float *err) {
	const __m256i positive = _mm256_set1_epi32(0x7fffffff);
	// The first byte of each of four numbers, and then those of both halves together.
	const __m256i firsts = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1,
	                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
	const __m256i halves = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
	long whole = dims & ~7L;
	for (long r = 0; r < n; r++, src += dims, high += stride, low += stride) {
		float tail[8] = {0};
		memcpy(tail, src + whole, (dims - whole) * sizeof(float));
		__m256i top = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)tail), positive);
		for (long i = 0; i < whole; i += 8) {
			top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(src + i)), positive));
		}
		__m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
		m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
		m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
		float most = _mm_cvtss_f32(_mm_castsi128_ps(m));
		if (_mm_cvtsi128_si32(m) >= 0x7f800000 || most < CVEC_TINY) {
			return r;
		}
		__m256 f = _mm256_set1_ps(CVEC_CODE / most);
		__m256i codes = _mm256_setzero_si256(), rest = _mm256_setzero_si256();
		for (long i = 0; i < dims; i += 8) {
			__m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(i < whole ? src + i : tail), f));
			__m256i h = _mm256_srli_epi32(_mm256_add_epi32(c, _mm256_set1_epi32(32896)), 8);
			__m256i l = _mm256_srai_epi32(_mm256_slli_epi32(c, 24), 24);
			__m256i odd = _mm256_srli_epi64(c, 32);
			codes = _mm256_add_epi64(codes, _mm256_mul_epi32(c, c));
			codes = _mm256_add_epi64(codes, _mm256_mul_epi32(odd, odd));
			rest = _mm256_add_epi32(rest, _mm256_mullo_epi32(l, l));
			h = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(h, firsts), halves);
			l = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(l, firsts), halves);
			_mm_storel_epi64((__m128i *)(high + i), _mm256_castsi256_si128(h)); // stride has room for the whole eight
			_mm_storel_epi64((__m128i *)(low + i), _mm256_castsi256_si128(l));
		}
		memset(high + dims, 128, stride - dims);
		memset(low + dims, 0, stride - dims);
		cvec_row(sum64(codes), sum32(rest), scale + r, err + r);
	}
	return n;
}

AVX2 void cvec_dots_avx2(const uint8_t *high, long n, long stride, const int16_t *q16, const int8_t *q8, int32_t bias,
                         int32_t *dots) {
	(void)q8;
	long r = 0;
	for (; r + 4 <= n; r += 4, high += 4 * stride) { // four rows share what is loaded of the query
		__m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0;
		for (long i = 0; i < stride; i += 16) {
			__m256i q = _mm256_loadu_si256((const __m256i *)(q16 + i));
#define STEP(s, row)                                                                                                      \
	s = _mm256_add_epi32(                                                                                                 \
	    s, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(high + (row)*stride + i))), q))
			STEP(s0, 0);
			STEP(s1, 1);
			STEP(s2, 2);
			STEP(s3, 3);
		}
		__m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(s0, s1), _mm256_hadd_epi32(s2, s3));
		__m128i d = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
		_mm_storeu_si128((__m128i *)(dots + r), _mm_sub_epi32(d, _mm_set1_epi32(bias)));
	}
	for (; r < n; r++, high += stride) {
		__m256i s = _mm256_setzero_si256();
		for (long i = 0; i < stride; i += 16) {
			__m256i q = _mm256_loadu_si256((const __m256i *)(q16 + i));
			STEP(s, 0);
		}
		dots[r] = (int32_t)((uint32_t)sum32(s) - (uint32_t)bias);
	}
#undef STEP
}

AVX2 void cvec_score_avx2(const uint8_t *high, const int8_t *low, const float *scale, long stride, const float *q,
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
		__m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
		for (long i = 0; i < stride; i += 32) {
			s0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes8(h + i, l + i)), _mm256_loadu_ps(q + i), s0);
			s1 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes8(h + i + 8, l + i + 8)), _mm256_loadu_ps(q + i + 8), s1);
			s2 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes8(h + i + 16, l + i + 16)), _mm256_loadu_ps(q + i + 16), s2);
			s3 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes8(h + i + 24, l + i + 24)), _mm256_loadu_ps(q + i + 24), s3);
		}
		__m256 s = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
		__m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
		t = _mm_add_ps(t, _mm_movehl_ps(t, t));
		t = _mm_add_ss(t, _mm_movehdup_ps(t));
		out[r] = _mm_cvtss_f32(t) * scale[rows[r]];
	}
}
