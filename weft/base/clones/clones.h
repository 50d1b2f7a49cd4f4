// WEFT_CLONES before a function compiles it for several instruction sets. The program chooses one
// when it starts. Use it for a loop over arrays that is no bottleneck of training: weft/kernels has
// the bottlenecks. All clones give the same bits if contraction is off (-ffp-contract=off), or if
// the function computes with integers.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define WEFT_CLONES
#endif
