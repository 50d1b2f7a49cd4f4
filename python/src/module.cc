// weft_torch._C: binds weft's backend for torch.distributed.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "codec_hook.h"
#include "own_process.h"
#include "parameter_server.h"
#include "regroup.h"
#include "weft/base/error.h"
#include "weft/comm/allocator.h"
#include "weft/comm/backend.h"
#include "weft/net/memory/heap.h"

namespace py = pybind11;

namespace weft::python {
namespace {

// Raises weft_torch.Error with the error's fields as attributes.
void raise(const Error& error) {
  static const py::handle type =
      py::object(py::module_::import("weft_torch").attr("Error")).release();
  std::string text = error.what();
  if (error.code() == Errc::kTimeout) text = "Timed out waiting: " + text;
  py::object raised = type("[weft] " + text);
  raised.attr("code") = to_string(error.code());
  raised.attr("operation") = error.context().operation;
  raised.attr("rank") = error.context().rank;
  raised.attr("peer") = error.context().peer;
  PyErr_SetObject(type.ptr(), raised.ptr());
}

py::dict heap_stats() {
  net::Heap* heap = comm::allocator_installed() ? net::process_heap() : nullptr;
  const net::HeapStats stats = heap != nullptr ? heap->stats() : net::HeapStats{};
  py::dict result;
  result["live_bytes"] = stats.live_bytes;
  result["peak_bytes"] = stats.peak_bytes;
  result["footprint_bytes"] = stats.footprint_bytes;
  result["limit_bytes"] = stats.limit_bytes;
  result["allocations"] = stats.allocations;
  return result;
}

}  // namespace
}  // namespace weft::python

PYBIND11_MODULE(_C, m) {
  using weft::comm::BackendOptions;
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using Released = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch.distributed");  // registers the types used below
  weft::comm::set_around_wait([](const std::function<void()>& wait) {
    if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return wait();
    const py::gil_scoped_release released;
    wait();
  });

  py::register_exception_translator(
      [](std::exception_ptr
             thrown) {  // NOLINT(performance-unnecessary-value-param): pybind11's type
        try {
          if (thrown) std::rethrow_exception(thrown);
        } catch (const weft::Error& error) {
          weft::python::raise(error);
        }
      });

  m.def("share_memory", &weft::comm::install_allocator,
        "From now on, allocates torch's CPU tensors in memory that the ranks of this host can read "
        "in place. Returns False if the system provides no shared memory.");
  m.def("heap_stats", &weft::python::heap_stats,
        "Statistics of this process's shared memory: bytes live, at peak, taken from the system, "
        "and the limit.");
  m.def("is_shared", [](const at::Tensor& tensor) {
    return weft::comm::allocator_installed() &&
           weft::net::process_heap()->contains(tensor.data_ptr());
  });

  py::class_<BackendOptions>(m, "BackendOptions")
      .def(py::init<>())
      .def_property(
          "transport",
          [](const BackendOptions& options) {
            return std::string(weft::comm::to_string(options.transport));
          },
          [](BackendOptions& options, const std::string& name) {
            options.transport = weft::comm::parse_transport(name);
          })
      .def_readwrite("interface", &BackendOptions::interface)
      .def_readwrite("store_host", &BackendOptions::store_host)
      .def_property(
          "secret", [](const BackendOptions& options) { return py::bytes(options.secret); },
          [](BackendOptions& options, const py::bytes& secret) { options.secret = secret; })
      .def_readwrite("timeout", &BackendOptions::timeout)
      .def_readwrite("alike", &BackendOptions::alike)
      .def_readwrite("epoch", &BackendOptions::epoch)
      .def_readwrite("job_ranks", &BackendOptions::job_ranks);
  m.def(
      "agree_on_attempt",
      [](const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout) {
        return weft::comm::agree_on_attempt(*store, rank, size, timeout);
      },
      Released());
  m.def("job_ranks_of", [](const Backend& backend) { return weft::comm::job_ranks_of(*backend); });
  m.def(
      "make_backend",
      [](const StorePtr& store, int rank, int size, const BackendOptions& options) -> Backend {
        return weft::comm::make_backend(store, rank, size, options);
      },
      Released());
  m.def(
      "make_reconfigurable_backend",
      [](const StorePtr& store, int rank, int size, const BackendOptions& options) -> Backend {
        return weft::comm::make_reconfigurable_backend(store, rank, size, options);
      },
      Released());
  weft::python::bind_regroup(m);
  weft::python::bind_parameter_server(m);

  m.def("duplicate", &weft::python::duplicate, Released());
  using weft::python::CodecHook;
  py::class_<CodecHook::Saved>(m, "SavedBucket")
      .def(py::init([](std::int64_t step, std::int64_t count, std::vector<at::Tensor> memory) {
        return CodecHook::Saved{step, count, std::move(memory)};
      }))
      .def_readonly("step", &CodecHook::Saved::step)
      .def_readonly("count", &CodecHook::Saved::count)
      .def_readonly("memory", &CodecHook::Saved::memory);
  using Hook = std::unique_ptr<CodecHook, weft::python::OfItsProcess<CodecHook>>;
  py::class_<CodecHook, Hook>(m, "CodecHook")
      .def(py::init<const Backend&, const std::string&>(), Released())
      .def_property_readonly("spec", &CodecHook::spec)
      .def(
          "average",
          [](CodecHook& hook, int index, const at::Tensor& values,
             const std::vector<at::Tensor>& gradients) {
            return hook.average({index, values, gradients});
          },
          Released())
      .def("state", &CodecHook::state)
      .def("load", &CodecHook::load);
}
