#include "weft/kernels/internal/level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::kernels::internal {
namespace generic {
#include "weft/kernels/internal/convert.inc"
#include "weft/kernels/internal/encode.inc"
#include "weft/kernels/internal/reduce.inc"
#include "weft/kernels/internal/update.inc"
}  // namespace generic

const Level kGeneric = {"generic",
                        generic::reduce,
                        generic::cast,
                        generic::stream_copy,
                        generic::sum_of_squares,
                        generic::is_within,
                        generic::scale,
                        generic::sgd,
                        generic::rmsprop,
                        generic::adagrad,
                        generic::adam,
                        generic::lion,
                        generic::quantize,
                        generic::dequantize_add,
                        generic::multiply_right,
                        generic::multiply_left,
                        generic::add_low_rank};

}  // namespace weft::kernels::internal
