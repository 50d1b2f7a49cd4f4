#include "regroup.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/init.h"
#include "weft/rank_link/link.h"

namespace py = pybind11;

namespace weft::python {
namespace {

using comm::Group;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Milliseconds = std::chrono::milliseconds;

// What a group keeps for the next one. The group itself belongs to torch.distributed alone, so that
// it ends when torch lets go of it.
struct RegroupData {
  std::shared_ptr<const comm::internal::RegroupData> of;
};

// A group that has formed.
struct Formed {
  BackendPtr backend;
  RegroupData regroup_data;
  int rank = 0, size = 1;
  std::uint32_t epoch = 0;
  std::vector<int> former;  // by rank: its rank in the previous group, -1 for a newcomer
};

Formed formed(const Group& group) {
  return {BackendPtr::reclaim_copy(&group.backend()),
          {group.regroup_data()},
          group.rank(),
          group.size(),
          group.epoch(),
          group.former_ranks()};
}

RegroupData regroupable(const BackendPtr& backend, const StorePtr& store,
                        const comm::BackendOptions& options) {
  return {comm::regroupable(backend, store, options).regroup_data()};
}

Formed regroup(const BackendPtr& backend, const RegroupData& data,
               const comm::RegroupOptions& options) {
  return formed(Group(backend, "world", data.of).regroup(options));
}

Formed join(const StorePtr& store, const comm::BackendOptions& options, Milliseconds wait,
            int rank) {
  return formed(comm::join_group(store, options, wait, rank));
}

}  // namespace

void bind_regroup(py::module_& m) {
  using comm::RegroupOptions;
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<RegroupData>(m, "RegroupData");
  py::class_<Formed>(m, "Formed")
      .def_readonly("backend", &Formed::backend)
      .def_readonly("regroup_data", &Formed::regroup_data)
      .def_readonly("rank", &Formed::rank)
      .def_readonly("size", &Formed::size)
      .def_readonly("epoch", &Formed::epoch)
      .def_readonly("former", &Formed::former);
  py::class_<RegroupOptions>(m, "RegroupOptions")
      .def(py::init<>())
      .def_readwrite("size", &RegroupOptions::size)
      .def_readwrite("keep_ranks", &RegroupOptions::keep_ranks)
      .def_readwrite("at_least", &RegroupOptions::at_least)
      .def_readwrite("wait", &RegroupOptions::wait)
      .def_readwrite("timeout", &RegroupOptions::timeout);
  m.def("tell_launcher", [](const std::string& verb) {
    if (rank_link::Link* const link = rank_link::launcher()) link->tell(verb);
  });
  m.def("regroupable", &regroupable, Released());
  m.def("regroup", &regroup, Released());
  m.def("join", &join, Released());
}

}  // namespace weft::python
