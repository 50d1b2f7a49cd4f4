#if defined(__x86_64__)
#include "weft/kernels/internal/level.h"

#include <immintrin.h>

namespace weft::kernels::internal {
namespace avx512 {
#include "weft/kernels/internal/convert.inc"
#include "weft/kernels/internal/encode.inc"
#include "weft/kernels/internal/reduce.inc"
#include "weft/kernels/internal/update.inc"
}  // namespace avx512

const Level kAvx512 = {"avx512",
                       avx512::reduce,
                       avx512::cast,
                       avx512::stream_copy,
                       avx512::sum_of_squares,
                       avx512::is_within,
                       avx512::scale,
                       avx512::sgd,
                       avx512::rmsprop,
                       avx512::adagrad,
                       avx512::adam,
                       avx512::lion,
                       avx512::quantize,
                       avx512::dequantize_add,
                       avx512::multiply_right,
                       avx512::multiply_left,
                       avx512::add_low_rank};

}  // namespace weft::kernels::internal
#endif
