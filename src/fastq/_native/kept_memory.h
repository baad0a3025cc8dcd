/* Large blocks of memory that are given back and asked for again, many times a second: what the machine gets back it hands out as fresh
   pages, and clearing them and faulting them in took two thirds of the CPU of reading batches as Arrow tables.

   Rules
   - Any thread, with the GIL or without: an Arrow table's memory comes back on whatever thread drops it. A lock that is taken is not waited
     for (a fork's child may have inherited it so): the machine's own memory serves then.
   - At most KEEP_TOTAL_MAX bytes are kept by a process, of blocks of KEEP_MIN to KEEP_MAX; what has been kept longest goes first.
   - A block's header says what it takes; its bytes, which have malloc's alignment, are not cleared.
   - Nothing is kept under the address sanitizer, which has to see each block's end. */

#ifndef FASTQ_KEPT_MEMORY_H
#define FASTQ_KEPT_MEMORY_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
  #include <intrin.h>
  static volatile long keep_lock_word;
  #define KEEP_TRY_LOCK() (_InterlockedExchange(&keep_lock_word, 1) == 0)
  #define KEEP_UNLOCK() ((void)_InterlockedExchange(&keep_lock_word, 0))
#else
  static char keep_lock_word;
  #define KEEP_TRY_LOCK() (!__atomic_test_and_set(&keep_lock_word, __ATOMIC_ACQUIRE))
  #define KEEP_UNLOCK() __atomic_clear(&keep_lock_word, __ATOMIC_RELEASE)
#endif

#define KEEP_HEADER 64
#define KEEP_MIN ((size_t)64 << 10)
#define KEEP_MAX ((size_t)16 << 20)
#define KEEP_COUNT_MAX 64
#if defined(__SANITIZE_ADDRESS__)
  #define KEEP_TOTAL_MAX ((size_t)0)
#else
  #define KEEP_TOTAL_MAX ((size_t)32 << 20)
#endif

static struct {
  void *blocks[KEEP_COUNT_MAX]; /* in the order in which they came back */
  int count;
  size_t total;
} kept;

/* A block's first word: bytes of data, a multiple of KEEP_MIN, or 0 for what is never kept. */
static size_t keep_capacity(const void *block) {
  size_t capacity;
  memcpy(&capacity, block, sizeof capacity);
  return capacity;
}

static void *keep_out(int index) {
  void *block = kept.blocks[index];
  kept.count--;
  kept.total -= keep_capacity(block);
  memmove(&kept.blocks[index], &kept.blocks[index + 1], (size_t)(kept.count - index) * sizeof(void *));
  return block;
}

/* Memory for `size` bytes; NULL when there is none. */
static void *keep_take(size_t size) {
  size_t capacity = 0;
  char *block = NULL;
  if (size >= KEEP_MIN && size <= KEEP_MAX) {
    capacity = (size + KEEP_MIN - 1) / KEEP_MIN * KEEP_MIN;
    if (KEEP_TRY_LOCK()) {
      int best = -1, i;
      size_t found = capacity + capacity / 2 + KEEP_MIN; /* more would be wasted on it */
      for (i = 0; i < kept.count; i++) {
        size_t has = keep_capacity(kept.blocks[i]);
        if (has >= capacity && has < found) {
          best = i;
          found = has;
        }
      }
      if (best >= 0)
        block = keep_out(best);
      KEEP_UNLOCK();
      if (block != NULL)
        return block + KEEP_HEADER;
    }
  }
  if (size > (size_t)-1 / 2)
    return NULL;
  block = malloc((capacity ? capacity : size) + KEEP_HEADER);
  if (block == NULL)
    return NULL;
  memcpy(block, &capacity, sizeof capacity);
  return block + KEEP_HEADER;
}

/* Take back what keep_take answered; NULL is nothing. */
static void keep_give(void *data) {
  void *block, *gone[KEEP_COUNT_MAX];
  size_t capacity;
  int count = 0;
  if (data == NULL)
    return;
  block = (char *)data - KEEP_HEADER;
  capacity = keep_capacity(block);
  if (capacity != 0 && capacity <= KEEP_TOTAL_MAX && KEEP_TRY_LOCK()) {
    while (kept.count == KEEP_COUNT_MAX || kept.total + capacity > KEEP_TOTAL_MAX)
      gone[count++] = keep_out(0);
    kept.blocks[kept.count++] = block;
    kept.total += capacity;
    KEEP_UNLOCK();
    block = NULL;
  }
  free(block);
  while (count > 0)
    free(gone[--count]);
}

#endif
