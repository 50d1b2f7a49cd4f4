// The client of the job's parameter servers: weft_torch.ParameterServerClient.
#pragma once

#include <pybind11/pybind11.h>

namespace weft::python {

void bind_parameter_server(pybind11::module_& module);

}  // namespace weft::python
