// In place of parameter_server.cc, where WEFT_PS is off.
#include "parameter_server.h"
#include "weft/base/error.h"

namespace py = pybind11;

namespace weft::python {

void bind_parameter_server(py::module_& module) {
  module.def("ParameterServerClient", [](const py::args&, const py::kwargs&) {
    throw Error(Errc::kInvalidArgument,
                "ParameterServerClient needs the parameter server, which this weft was built "
                "without; build it with -DWEFT_PS=ON");
  });
}

}  // namespace weft::python
