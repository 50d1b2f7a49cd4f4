// Deletes a Python object's C++ part in the process that made it.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace weft::python {

// A forked child has none of the object's threads, and may have inherited its locks while they were
// held. A destructor that joins the threads would never end there, so the child keeps the object.
// The GIL is released meanwhile, because the threads may need it to end.
template <class T>
class OfItsProcess {
 public:
  void operator()(T* object) const {
    if (getpid() != made_) return;
    const pybind11::gil_scoped_release released;
    delete object;
  }

 private:
  pid_t made_ = getpid();
};

}  // namespace weft::python
