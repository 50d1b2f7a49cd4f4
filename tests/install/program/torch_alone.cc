// weft::torch has all of libtorch's headers, those of torch::nn too.
#if !__has_include(<torch/torch.h>) || !__has_include(<ATen/core/Tensor.h>)
#error "weft::torch does not give torch/torch.h"
#endif
#include <torch/headeronly/version.h>

static_assert(TORCH_VERSION_MAJOR == 2);
