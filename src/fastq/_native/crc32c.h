/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78): processor instruction where there is one, tables otherwise.
 *
 * Rules
 * - A checksum that goes in or comes out is finished (inverted); the *_raw functions work on the register.
 * - crc32c_select() picks once, at import; after that everything is read-only, so threads need no lock.
 * - The instruction has a latency of three cycles and a throughput of one: three streams hide it. Their registers are
 *   joined by multiplying with x^(8 n) mod P, where n is the number of bytes that follow the stream.
 * - Where there are 512-bit carry-less multiplications, the bulk is folded by them, at three times that pace: four
 *   registers of 64 bytes are shifted by 256 bytes and take up the next 256, then are joined into 16 bytes, which the
 *   instruction reduces.
 */
#ifndef FASTQ_CRC32C_H
#define FASTQ_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(_M_X64)) && !defined(_M_ARM64EC)
  #define FASTQ_CRC_X86 1
  #include <nmmintrin.h>
  #include <wmmintrin.h>
  #if defined(_MSC_VER) && !defined(__clang__)
    #include <intrin.h>
    #define FASTQ_CRC_TARGET
  #else
    #if defined(__clang__) && __clang_major__ >= 14
      #define FASTQ_CRC_FEATURES "sse4.2,crc32,pclmul" /* one of its own there, and no part of sse4.2 any more */
    #else
      #define FASTQ_CRC_FEATURES "sse4.2,pclmul"
    #endif
    #define FASTQ_CRC_TARGET __attribute__((target(FASTQ_CRC_FEATURES)))
    #if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
      #define FASTQ_CRC_WIDE 1
      #include <immintrin.h>
      #define FASTQ_CRC_WIDE_TARGET __attribute__((target("avx512f,avx512dq,vpclmulqdq," FASTQ_CRC_FEATURES)))
    #endif
  #endif
#elif defined(__aarch64__) || defined(_M_ARM64)
  #define FASTQ_CRC_ARM 1
  #if defined(_MSC_VER) && !defined(__clang__)
    #include <intrin.h>
    #include <windows.h>
    #define FASTQ_CRC_TARGET
    #define FASTQ_ARM_CRC64 __crc32cd
    #define FASTQ_ARM_CRC8 __crc32cb
  #elif defined(__clang__)
    #define FASTQ_CRC_TARGET __attribute__((target("crc")))
    #define FASTQ_ARM_CRC64 __builtin_arm_crc32cd
    #define FASTQ_ARM_CRC8 __builtin_arm_crc32cb
  #else
    #define FASTQ_CRC_TARGET __attribute__((target("+crc")))
    #define FASTQ_ARM_CRC64 __builtin_aarch64_crc32cx
    #define FASTQ_ARM_CRC8 __builtin_aarch64_crc32cb
  #endif
  #if defined(__linux__)
    #include <sys/auxv.h>
  #elif defined(__APPLE__)
    #include <sys/sysctl.h>
  #endif
#endif

#define FASTQ_CRC_POLYNOMIAL 0x82F63B78u

static uint32_t fastq_crc_table[8][256];

static void fastq_crc_fill_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (FASTQ_CRC_POLYNOMIAL & (0u - (crc & 1)));
        fastq_crc_table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = fastq_crc_table[slice - 1][byte];
            fastq_crc_table[slice][byte] = (crc >> 8) ^ fastq_crc_table[0][crc & 0xFF];
        }
}

/* Slicing by eight, on any byte order. */
static uint32_t fastq_crc_table_raw(uint32_t crc, const uint8_t *p, size_t n) {
    const uint32_t (*t)[256] = (const uint32_t (*)[256])fastq_crc_table;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = t[7][low & 0xFF] ^ t[6][(low >> 8) & 0xFF] ^ t[5][(low >> 16) & 0xFF] ^ t[4][low >> 24]
            ^ t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; n > 0; n--, p++)
        crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xFF];
    return crc;
}

#if defined(FASTQ_CRC_X86) || defined(FASTQ_CRC_ARM)
static inline uint64_t fastq_crc_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}
#endif

#ifdef FASTQ_CRC_X86
/* x^(8 n - 33) mod P, reflected: clmul by it and a crc32 instruction, which brings x^33, shift by n bytes. */
#define FASTQ_CRC_SHIFT_BY(n) FASTQ_CRC_SHIFT_##n
#define FASTQ_CRC_SHIFT_168 0x1B3D8F29u
#define FASTQ_CRC_SHIFT_336 0xA60CE07Bu
#define FASTQ_CRC_SHIFT_2048 0xA51B6135u
#define FASTQ_CRC_SHIFT_4096 0x82F89C77u

FASTQ_CRC_TARGET static inline uint64_t fastq_crc_clmul(uint32_t crc, uint32_t by) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi32_si128((int)by), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

/* One loop body for both block sizes: three streams of `stream` bytes. */
FASTQ_CRC_TARGET static inline uint32_t fastq_crc_block(
    uint32_t crc, const uint8_t *p, size_t stream, uint32_t shift_one, uint32_t shift_two) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < stream; i += 8) {
        a = _mm_crc32_u64(a, fastq_crc_load64(p + i));
        b = _mm_crc32_u64(b, fastq_crc_load64(p + stream + i));
        c = _mm_crc32_u64(c, fastq_crc_load64(p + 2 * stream + i));
    }
    uint64_t joined = fastq_crc_clmul((uint32_t)a, shift_two) ^ fastq_crc_clmul((uint32_t)b, shift_one);
    return (uint32_t)(_mm_crc32_u64(0, joined) ^ c);
}

FASTQ_CRC_TARGET static uint32_t fastq_crc_hardware_raw(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * 2048; n -= 3 * 2048, p += 3 * 2048)
        crc = fastq_crc_block(crc, p, 2048, FASTQ_CRC_SHIFT_BY(2048), FASTQ_CRC_SHIFT_BY(4096));
    for (; n >= 3 * 168; n -= 3 * 168, p += 3 * 168)
        crc = fastq_crc_block(crc, p, 168, FASTQ_CRC_SHIFT_BY(168), FASTQ_CRC_SHIFT_BY(336));
    for (; n >= 8; n -= 8, p += 8)
        crc = (uint32_t)_mm_crc32_u64(crc, fastq_crc_load64(p));
    for (; n > 0; n--, p++)
        crc = _mm_crc32_u8(crc, *p);
    return crc;
}

#ifdef FASTQ_CRC_WIDE
#define FASTQ_CRC_WIDE_BYTES 1024 /* below, three streams of the instruction are as fast */

/* The factors that shift 16 bytes by n bytes: x^(8 n - 33) for their second half, x^(8 (n + 8) - 33) for the first. */
#define FASTQ_CRC_FOLD_BY_16 _mm_set_epi64x(0x493C7D27, 0xF20C0DFE)
#define FASTQ_CRC_FOLD_BY_32 _mm_set_epi64x(0xBA4FC28E, 0x3DA6D0CB)
#define FASTQ_CRC_FOLD_BY_48 _mm_set_epi64x(0xDDC0152B, 0x1C291D04)
#define FASTQ_CRC_FOLD_BY_64 _mm_set_epi64x(0x9E4ADDF8, 0x740EEF02)
#define FASTQ_CRC_FOLD_BY_128 _mm_set_epi64x(0x0D3B6092, 0x6992CEA2)
#define FASTQ_CRC_FOLD_BY_192 _mm_set_epi64x(0xAB7AFF2A, 0xA87AB8A8)
#define FASTQ_CRC_FOLD_BY_256 _mm_set_epi64x(0xB9E02B86, 0xDCB17AA4)

FASTQ_CRC_WIDE_TARGET static inline __m512i fastq_crc_fold(__m512i bytes, __m512i by, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(bytes, by, 0x00), second = _mm512_clmulepi64_epi128(bytes, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* all three, xor */
}

FASTQ_CRC_WIDE_TARGET static uint32_t fastq_crc_wide_raw(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < FASTQ_CRC_WIDE_BYTES)
        return fastq_crc_hardware_raw(crc, p, n);
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64), c = _mm512_loadu_si512(p + 128),
            d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i by = _mm512_broadcast_i64x2(FASTQ_CRC_FOLD_BY_256);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = fastq_crc_fold(a, by, _mm512_loadu_si512(p));
        b = fastq_crc_fold(b, by, _mm512_loadu_si512(p + 64));
        c = fastq_crc_fold(c, by, _mm512_loadu_si512(p + 128));
        d = fastq_crc_fold(d, by, _mm512_loadu_si512(p + 192));
    }
    d = fastq_crc_fold(a, _mm512_broadcast_i64x2(FASTQ_CRC_FOLD_BY_192), d);
    d = fastq_crc_fold(b, _mm512_broadcast_i64x2(FASTQ_CRC_FOLD_BY_128), d);
    d = fastq_crc_fold(c, _mm512_broadcast_i64x2(FASTQ_CRC_FOLD_BY_64), d);
    /* Each 16 bytes by the distance to the last ones, which stay as they are. */
    by = _mm512_zextsi128_si512(FASTQ_CRC_FOLD_BY_48);
    by = _mm512_inserti64x2(by, FASTQ_CRC_FOLD_BY_32, 1);
    by = _mm512_inserti64x2(by, FASTQ_CRC_FOLD_BY_16, 2);
    a = fastq_crc_fold(d, by, _mm512_setzero_si512());
    __m128i sum = _mm_xor_si128(_mm512_castsi512_si128(a), _mm512_extracti64x2_epi64(a, 1));
    sum = _mm_xor_si128(sum, _mm_xor_si128(_mm512_extracti64x2_epi64(a, 2), _mm512_extracti64x2_epi64(d, 3)));
    crc = (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum));
    crc = (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(sum, 1));
    return fastq_crc_hardware_raw(crc, p, n);
}

static int fastq_crc_has_wide(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq");
}
#endif

static int fastq_crc_has_instruction(void) {
  #if defined(_MSC_VER) && !defined(__clang__)
    int info[4];
    __cpuid(info, 1);
    return (info[2] >> 20 & 1) && (info[2] >> 1 & 1); /* SSE4.2, PCLMULQDQ */
  #else
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  #endif
}
#endif

#ifdef FASTQ_CRC_ARM
#define FASTQ_CRC_STREAM 4096
#define FASTQ_CRC_X_4096 0x35D73A62u /* x^(8 * 4096) mod P, reflected */
#define FASTQ_CRC_X_8192 0x28461564u

/* a * b mod P in software: some hundred cycles, once for each 12 KiB. */
static uint32_t fastq_crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        product ^= b & (0u - !!(a & bit));
        b = (b >> 1) ^ (FASTQ_CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

FASTQ_CRC_TARGET static uint32_t fastq_crc_hardware_raw(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * FASTQ_CRC_STREAM; n -= 3 * FASTQ_CRC_STREAM, p += 3 * FASTQ_CRC_STREAM) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < FASTQ_CRC_STREAM; i += 8) {
            crc = FASTQ_ARM_CRC64(crc, fastq_crc_load64(p + i));
            b = FASTQ_ARM_CRC64(b, fastq_crc_load64(p + FASTQ_CRC_STREAM + i));
            c = FASTQ_ARM_CRC64(c, fastq_crc_load64(p + 2 * FASTQ_CRC_STREAM + i));
        }
        crc = fastq_crc_multiply(crc, FASTQ_CRC_X_8192) ^ fastq_crc_multiply(b, FASTQ_CRC_X_4096) ^ c;
    }
    for (; n >= 8; n -= 8, p += 8)
        crc = FASTQ_ARM_CRC64(crc, fastq_crc_load64(p));
    for (; n > 0; n--, p++)
        crc = FASTQ_ARM_CRC8(crc, *p);
    return crc;
}

static int fastq_crc_has_instruction(void) {
  #if defined(__ARM_FEATURE_CRC32)
    return 1;
  #elif defined(_MSC_VER) && !defined(__clang__)
    return IsProcessorFeaturePresent(PF_ARM_V8_CRC32_INSTRUCTIONS_AVAILABLE);
  #elif defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7) & 1; /* HWCAP_CRC32 */
  #elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.armv8_crc32", &has, &size, NULL, 0) == 0 && has;
  #else
    return 0;
  #endif
}
#endif

typedef uint32_t (*fastq_crc_function)(uint32_t crc, const uint8_t *p, size_t n);
static fastq_crc_function fastq_crc_raw = fastq_crc_table_raw;

/* Call once, before any other thread can: fills the table and picks. Answers whether the instruction is used. */
static int fastq_crc_select(void) {
    fastq_crc_fill_table();
#if defined(FASTQ_CRC_X86) || defined(FASTQ_CRC_ARM)
    if (fastq_crc_has_instruction()) {
        fastq_crc_raw = fastq_crc_hardware_raw;
  #ifdef FASTQ_CRC_WIDE
        if (fastq_crc_has_wide())
            fastq_crc_raw = fastq_crc_wide_raw;
  #endif
        return 1;
    }
#endif
    return 0;
}

static inline uint32_t fastq_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
    return ~fastq_crc_raw(~crc, p, n);
}

static inline uint32_t fastq_crc32c_table(uint32_t crc, const uint8_t *p, size_t n) {
    return ~fastq_crc_table_raw(~crc, p, n);
}

#endif
