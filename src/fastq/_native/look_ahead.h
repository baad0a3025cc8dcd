/* Memory of the values that a loop over a list will come to.

   Rules: only hints, for any address, so that nothing of an item is read; under the GIL, for its list. Values that were made long ago
   lie outside of the caches, and each would be waited for in turn: a quarter of the CPU of send_many for values of 400 bytes. Items are
   objects of at least a header; of a long one the rest follows by the processor's own looking ahead. */

#ifndef FASTQ_LOOK_AHEAD_H
#define FASTQ_LOOK_AHEAD_H

#include <Python.h>

#if defined(_MSC_VER)
  #include <intrin.h>
  #define fastq_will_read(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
  #define FASTQ_INLINE static __forceinline
#else
  #define fastq_will_read(p) __builtin_prefetch(p, 0)
  /* Always: gcc takes a function of nothing but hints for one without effect, and leaves its calls out. */
  #define FASTQ_INLINE static inline __attribute__((always_inline))
#endif

#define FASTQ_ITEMS_AHEAD 16 /* of which the first line is asked for */
#define FASTQ_BYTES_AHEAD 6  /* of which more is */
#define FASTQ_LINE 64

/* A value that will be read once its place is known: a twelfth of send()'s CPU for such values. */
FASTQ_INLINE void fastq_look_at(PyObject *value) {
  fastq_will_read(value);
  fastq_will_read((const char *)value + FASTQ_LINE);
  fastq_will_read((const char *)value + 2 * FASTQ_LINE);
  fastq_will_read((const char *)value + 3 * FASTQ_LINE);
}

/* `list` will be read at `next`, and on. */
FASTQ_INLINE void fastq_look_ahead(PyObject *list, Py_ssize_t next) {
  Py_ssize_t size = PyList_GET_SIZE(list);
  if (next + FASTQ_ITEMS_AHEAD < size) {
    const char *item = (const char *)PyList_GET_ITEM(list, next + FASTQ_BYTES_AHEAD);
    fastq_will_read(PyList_GET_ITEM(list, next + FASTQ_ITEMS_AHEAD));
    fastq_will_read(item + FASTQ_LINE);
    fastq_will_read(item + 2 * FASTQ_LINE);
    fastq_will_read(item + 3 * FASTQ_LINE);
  }
}

#endif
