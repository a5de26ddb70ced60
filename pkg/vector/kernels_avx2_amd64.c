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

AVX2 long cvec_select_avx2(const int32_t *dots, long n, const float *scale, const float *err, float factor, float floor,
                           uint32_t *rows, float *upper) {
	__m256 f = _mm256_set1_ps(factor), low = _mm256_set1_ps(floor);
	long c = 0, i = 0;
	for (; i + 8 <= n; i += 8) {
		__m256 d = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(dots + i)));
		__m256 up = _mm256_add_ps(_mm256_mul_ps(d, _mm256_mul_ps(_mm256_loadu_ps(scale + i), f)), _mm256_loadu_ps(err + i));
		unsigned hit = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(up, low, _CMP_GE_OQ));
		if (hit == 0) {
			continue;
		}
		float v[8];
		_mm256_storeu_ps(v, up);
		for (; hit != 0; hit &= hit - 1) {
			int j = __builtin_ctz(hit);
			rows[c] = (uint32_t)(i + j);
			upper[c++] = v[j];
		}
	}
	for (; i < n; i++) {
		float up = (float)dots[i] * (scale[i] * factor) + err[i];
		if (up >= floor) {
			rows[c] = (uint32_t)i;
			upper[c++] = up;
		}
	}
	return c;
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

AVX2 void cvec_signs_avx2(const uint8_t *high, const int8_t *low, const float *scale, long stride, long words,
                          const float *centre, long first, long n, uint64_t *bits) {
	for (long r = first; r < first + n; r++) {
		const uint8_t *h = high + (size_t)r * stride;
		const int8_t *l = low + (size_t)r * stride;
		uint64_t *out = bits + (r >> 3) * words * 8 + (r & 7);
		__m256 f = _mm256_set1_ps(scale[r]);
		for (long w = 0; w < words; w++) {
			uint64_t word = 0;
			for (long j = 0; j < 64; j += 8) {
				long i = w * 64 + j;
				__m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(codes8(h + i, l + i)), f);
				__m256 above = _mm256_cmp_ps(v, _mm256_loadu_ps(centre + i), _CMP_GT_OQ);
				word |= (uint64_t)(unsigned)_mm256_movemask_ps(above) << j;
			}
			out[w * 8] = word;
		}
	}
}

// count8 counts the bits of each of four words, by looking up its half bytes.
AVX2 static inline __m256i count8(__m256i v) {
	const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2,
	                                       3, 3, 4);
	const __m256i half = _mm256_set1_epi8(15);
	__m256i a = _mm256_shuffle_epi8(table, _mm256_and_si256(v, half));
	__m256i b = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), half));
	return _mm256_sad_epu8(_mm256_add_epi8(a, b), _mm256_setzero_si256());
}

AVX2 void cvec_hamming_avx2(const uint64_t *bits, long words, long n, const uint64_t *q, uint16_t *dist) {
	for (long g = 0; g < n; g += 8, bits += words * 8) {
		__m256i a = _mm256_setzero_si256(), b = a;
		for (long w = 0; w < words; w++) {
			__m256i x = _mm256_set1_epi64x((long long)q[w]);
			a = _mm256_add_epi64(a, count8(_mm256_xor_si256(x, _mm256_loadu_si256((const __m256i *)(bits + w * 8)))));
			b = _mm256_add_epi64(b, count8(_mm256_xor_si256(x, _mm256_loadu_si256((const __m256i *)(bits + w * 8 + 4)))));
		}
		uint64_t sum[8];
		_mm256_storeu_si256((__m256i *)sum, a);
		_mm256_storeu_si256((__m256i *)(sum + 4), b);
		for (int j = 0; j < 8; j++) {
			dist[g + j] = (uint16_t)sum[j];
		}
	}
}

AVX2 long cvec_gather_avx2(const uint16_t *dist, long n, uint16_t from, uint16_t to, uint32_t *rows) {
	const __m256i low = _mm256_set1_epi16((short)from), width = _mm256_set1_epi16((short)(to - from));
	long c = 0, i = 0;
	for (; i + 16 <= n; i += 16) {
		__m256i d = _mm256_sub_epi16(_mm256_loadu_si256((const __m256i *)(dist + i)), low);
		unsigned hit = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_min_epu16(d, width), d)) & 0x55555555u;
		for (; hit != 0; hit &= hit - 1) {
			rows[c++] = (uint32_t)(i + __builtin_ctz(hit) / 2);
		}
	}
	for (; i < n; i++) {
		if (dist[i] >= from && dist[i] <= to) {
			rows[c++] = (uint32_t)i;
		}
	}
	return c;
}
