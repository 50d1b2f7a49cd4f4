// Groups of torch.distributed that form again: weft_torch.regroup() and init_process_group().
#pragma once

#include <pybind11/pybind11.h>

namespace weft::python {

void bind_regroup(pybind11::module_& module);

}  // namespace weft::python
