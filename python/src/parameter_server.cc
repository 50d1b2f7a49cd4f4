#include "parameter_server.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/ATen.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "own_process.h"
#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/ps/client.h"
#include "weft/ps/job.h"

namespace py = pybind11;

namespace weft::python {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

struct Rules {
  std::string rule = "sgd";
  double lr = 0.1;
  int staleness = ps::kSync;
  std::string push_codec = "none", pull_codec = "none";
};

std::optional<optim::UpdateRule> rule_of(const std::string& name, double lr) {
  if (name == "none") return std::nullopt;
  if (name == "sgd") return kernels::Sgd{.lr = lr};
  if (name == "rmsprop") return kernels::RmsProp{.lr = lr};
  if (name == "adagrad") return kernels::Adagrad{.lr = lr};
  if (name == "adam") return kernels::Adam{.lr = lr};
  if (name == "lion") return kernels::Lion{.lr = lr};
  throw Error(Errc::kInvalidArgument,
              "rule \"" + name + "\": expected sgd, rmsprop, adagrad, adam, lion or none");
}

std::vector<std::string> names_of(const Named& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

class Client {
 public:
  Client(std::optional<std::uint32_t> worker, std::chrono::milliseconds timeout)
      : client_(options(worker, timeout)) {}

  void define(const Named& tensors, const Rules& rules) {
    std::vector<at::Tensor> values;  // own what the spans refer to
    std::vector<ps::Tensor> defined;
    for (const auto& [name, tensor] : tensors) {
      values.push_back(tensor.detach().to(at::kCPU, at::kFloat).contiguous());
      const auto count = static_cast<std::size_t>(values.back().numel());
      defined.push_back({name, {values.back().const_data_ptr<float>(), count}});
      counts_[name] = values.back().numel();
    }
    ps::Options options;
    options.rule = rule_of(rules.rule, rules.lr);
    options.staleness = rules.staleness;
    options.push_codec = rules.push_codec;
    options.pull_codec = rules.pull_codec;
    client_.define(defined, options);
  }
  void join() { client_.join(); }
  void leave() { client_.leave(); }

  void push(const Named& gradients, double lr) {
    for (const auto& [name, gradient] : gradients) {
      check(name, gradient);
      const at::Tensor dense = gradient.detach().to(at::kCPU, at::kFloat).contiguous();
      std::copy_n(dense.const_data_ptr<float>(), dense.numel(), client_.gradient(name).begin());
    }
    client_.wait(client_.push(names_of(gradients), lr));
  }
  void pull(const Named& into) {
    for (const auto& [name, tensor] : into) check(name, tensor);
    finish_pull();
    pull_ = client_.pull(names_of(into));
    finish_pull();
    for (const auto& [name, tensor] : into) {
      const auto values = client_.value(name);
      // copy_() reads it only.
      const at::Tensor seen =
          at::from_blob(const_cast<float*>(values.data()), tensor.sizes(), at::kFloat);
      tensor.detach().copy_(seen);
    }
  }
  std::uint32_t workers() { return client_.stats().workers; }

 private:
  static ps::ClientOptions options(std::optional<std::uint32_t> worker,
                                   std::chrono::milliseconds timeout) {
    ps::ClientOptions options = ps::job_client();
    if (worker) options.worker = worker;
    options.timeout = bounded_timeout(timeout);
    return options;
  }
  void check(const std::string& name, const at::Tensor& tensor) const {
    const auto found = counts_.find(name);
    WEFT_REQUIRE(found != counts_.end(), "there is no tensor " + name);
    WEFT_REQUIRE(found->second == tensor.numel(), name + " has " + std::to_string(found->second) +
                                                      " elements, not " +
                                                      std::to_string(tensor.numel()));
  }

  // A pull that a timeout has interrupted is still under way, and there is one at a time.
  void finish_pull() {
    if (pull_) client_.wait(*pull_);
    pull_.reset();
  }

  ps::Client client_;
  std::optional<ps::Client::Ticket> pull_;  // not known to be answered
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace

void bind_parameter_server(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Client, std::unique_ptr<Client, OfItsProcess<Client>>>(module, "ParameterServerClient")
      .def(py::init<std::optional<std::uint32_t>, std::chrono::milliseconds>(), Released())
      .def(
          "define",
          [](Client& client, const Named& tensors, const std::string& rule, double lr,
             int staleness, const std::string& push_codec, const std::string& pull_codec) {
            client.define(tensors, {rule, lr, staleness, push_codec, pull_codec});
          },
          Released())
      .def("join", &Client::join, Released())
      .def("leave", &Client::leave, Released())
      .def("push", &Client::push, Released())
      .def("pull", &Client::pull, Released())
      .def("workers", &Client::workers, Released());
}

}  // namespace weft::python
