// MKL's vector functions, settled before threads share them.
#pragma once

namespace weft::comm::internal {

// MKL chooses a function's kernel in its first call, and where two threads make that call at once
// one of them may get the kernel of 26 bits (relative error up to 2^-27 in float64) in place of the
// exact one, for that call alone. This makes the first call of each of those that libtorch uses, in
// both types; once a process, tens of microseconds. Source: pytorch issue 188792.
void settle_vector_math();

}  // namespace weft::comm::internal
