/* SipHash-2-4 with 128 bits of output, and two small helpers of the offset map.

   Rules: no state, nothing allocated. The answer's words are the reference's bytes 0-7 and 8-15, little-endian.
   Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (the 128-bit variant is in the reference code). */

#ifndef FASTQ_SIPHASH_H
#define FASTQ_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
  #include <intrin.h>
  #define fastq_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
  static inline uint64_t fastq_scale(uint64_t x, uint64_t n) { return __umulh(x, n); }
  #define FASTQ_LE64(v) (v)
#else
  #define fastq_prefetch(p) __builtin_prefetch(p, 1)
  /* x of 0 to 2^64-1 spread over 0 to n-1: a place in a table of any size, without a division. */
  #if defined(__SIZEOF_INT128__)
  static inline uint64_t fastq_scale(uint64_t x, uint64_t n) { return (uint64_t)(((unsigned __int128)x * n) >> 64); }
  #else /* 32 bits, where n is below 2^32 */
  static inline uint64_t fastq_scale(uint64_t x, uint64_t n) { return ((x >> 32) * n) >> 32; }
  #endif
  #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define FASTQ_LE64(v) __builtin_bswap64(v)
  #else
    #define FASTQ_LE64(v) (v)
  #endif
#endif

#define FASTQ_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define FASTQ_SIPROUND                                                                     \
  do {                                                                                     \
    v0 += v1; v1 = FASTQ_ROTL(v1, 13); v1 ^= v0; v0 = FASTQ_ROTL(v0, 32);                  \
    v2 += v3; v3 = FASTQ_ROTL(v3, 16); v3 ^= v2;                                           \
    v0 += v3; v3 = FASTQ_ROTL(v3, 21); v3 ^= v0;                                           \
    v2 += v1; v1 = FASTQ_ROTL(v1, 17); v1 ^= v2; v2 = FASTQ_ROTL(v2, 32);                  \
  } while (0)

static inline void fastq_siphash128(
    uint64_t k0, uint64_t k1, const uint8_t *p, size_t n, uint64_t *first, uint64_t *second) {
  uint64_t v0 = k0 ^ 0x736f6d6570736575ULL;
  uint64_t v1 = k1 ^ 0x646f72616e646f6dULL ^ 0xee;
  uint64_t v2 = k0 ^ 0x6c7967656e657261ULL;
  uint64_t v3 = k1 ^ 0x7465646279746573ULL;
  uint64_t word;
  const uint8_t *stop = p + (n & ~(size_t)7);
  size_t i, left = n & 7;
  for (; p < stop; p += 8) {
    memcpy(&word, p, 8);
    word = FASTQ_LE64(word);
    v3 ^= word;
    FASTQ_SIPROUND;
    FASTQ_SIPROUND;
    v0 ^= word;
  }
  word = (uint64_t)n << 56;
  for (i = 0; i < left; i++) word |= (uint64_t)p[i] << (8 * i);
  v3 ^= word;
  FASTQ_SIPROUND;
  FASTQ_SIPROUND;
  v0 ^= word;
  v2 ^= 0xee;
  for (i = 0; i < 4; i++) FASTQ_SIPROUND;
  *first = v0 ^ v1 ^ v2 ^ v3;
  v1 ^= 0xdd;
  for (i = 0; i < 4; i++) FASTQ_SIPROUND;
  *second = v0 ^ v1 ^ v2 ^ v3;
}

#endif
