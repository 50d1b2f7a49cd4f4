// Initializes MKL's vector functions before several threads call them.
#pragma once

namespace weft::comm::internal {

// MKL chooses a function's kernel in its first call. If two threads make that call at once, one of
// them may get the kernel with 26 bits (relative error up to 2^-27 in float64) instead of the exact
// one, for that call only. So this function makes the first call of each vector function that
// libtorch uses, in both types. It runs once per process and takes tens of microseconds. It starts
// no thread of OpenMP: a process forked afterwards would wait for that thread. Source: pytorch
// issue 188792.
void settle_vector_math();

}  // namespace weft::comm::internal
