// The inner loops of the search. Each is here once per level of the processor; the one in plain C is for every machine.
// They all do what their twin in kernels_go.go does: bit for bit where the arithmetic is on integers.
//
// A row is one vector: codes of 16 bits, apart in a plane of high bytes (code / 256, rounded, plus 128) and a plane of
// low bytes (the rest, signed). Rows of a plane follow one another every stride bytes, a multiple of 64.
#ifndef CONCLAVE_VECTOR_KERNELS_H
#define CONCLAVE_VECTOR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(_WIN32)
// Not on Windows: its compilers put 64-byte values on a stack that is aligned to 16.
#define CVEC_X86 1
#endif

enum { CVEC_PLAIN, CVEC_AVX2, CVEC_AVX512, CVEC_LEVELS };

// The largest code: 127 * 256, so that a high byte is between -127 and 127.
#define CVEC_CODE 32512.0f

// cvec_has says whether this machine can run a level.
int cvec_has(int level);

// cvec_quantize makes rows of n vectors. It stops at the first that has no largest number between CVEC_TINY and infinity,
// and returns how many were done.
#define CVEC_TINY 1e-30f
long cvec_quantize(int level, const float *src, long n, long dims, long stride, uint8_t *high, int8_t *low, float *scale,
                   float *err);

// cvec_dots is the product of every row's high bytes with the query's codes. bias is 128 times the sum of those codes.
// The query comes in both forms: as codes of 16 bits, and as a plane of high and a plane of low bytes.
void cvec_dots(int level, const uint8_t *high, long n, long stride, const int16_t *q16, const int8_t *q8, int32_t bias,
               int32_t *dots);

// cvec_score is the cosine of each of these rows, by both planes.
void cvec_score(int level, const uint8_t *high, const int8_t *low, const float *scale, long stride, const float *q,
                const uint32_t *rows, long n, float *out);

// What every level has to bring.
#define CVEC_DECLARE(level)                                                                                               \
	long cvec_quantize_##level(const float *, long, long, long, uint8_t *, int8_t *, float *, float *);                   \
	void cvec_dots_##level(const uint8_t *, long, long, const int16_t *, const int8_t *, int32_t, int32_t *);             \
	void cvec_score_##level(const uint8_t *, const int8_t *, const float *, long, const float *, const uint32_t *, long,  \
	                        float *);

CVEC_DECLARE(plain)
#ifdef CVEC_X86
CVEC_DECLARE(avx2)
CVEC_DECLARE(avx512)
#endif

// cvec_row keeps the two numbers of a row: what makes a cosine of its codes, and how far its high bytes may be off.
static inline void cvec_row(int64_t codes, int32_t rest, float *scale, float *err) {
	double s = 1.0 / __builtin_sqrt((double)codes);
	*scale = (float)s;
	*err = (float)(__builtin_sqrt((double)rest) * s);
}

#endif
