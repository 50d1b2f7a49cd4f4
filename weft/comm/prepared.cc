// PreparedAllReduce of group.h.

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/comm/group.h"
#include "weft/comm/internal/all_reduce.h"
#include "weft/comm/internal/group_backend.h"
#include "weft/comm/internal/tensor_data.h"

namespace weft::comm {
namespace {

// The properties of a tensor on which the checks of a call depend. Its memory is not one of them.
struct Form {
  explicit Form(const at::Tensor& tensor)
      : type(tensor.scalar_type()),
        device(tensor.device()),
        lazy(tensor.is_conj() || tensor.is_neg()),
        sizes(tensor.sizes()),
        strides(tensor.strides()) {}

  bool fits(const at::Tensor& tensor) const {
    return tensor.scalar_type() == type && tensor.device() == device &&
           (tensor.is_conj() || tensor.is_neg()) == lazy && tensor.sizes() == sizes &&
           tensor.strides() == strides;
  }
  // "Float[2, 3] on cpu with strides [3, 1]".
  std::string text() const {
    std::ostringstream out;
    out << c10::toString(type) << at::IntArrayRef(sizes) << " on " << device << " with strides "
        << at::IntArrayRef(strides);
    return out.str();
  }

  at::ScalarType type;
  at::Device device;
  bool lazy;  // a conjugate or negation that has not been computed
  at::DimVector sizes, strides;
};

}  // namespace

struct PreparedAllReduce::Call {
  Call(const Group& of, const at::Tensor& the_tensor, ReduceOp the_op,
       std::chrono::milliseconds limit)
      : group(of),
        weft(internal::weft_backend(of.backend())),
        tensor(the_tensor),
        op(the_op),
        timeout(bounded_timeout(limit)),
        form(the_tensor) {
    if (weft == nullptr || (weft->has_device_backend() && !tensor.is_cpu())) return;
    plain = internal::plain_args(tensor);
    // Throws what the first call would throw.
    internal::require_dense(tensor);
    internal::require_reduction(tensor, op);
    if (!plain) return;
    plain->op = op;
    plain->shape = form.sizes.data();
  }

  void require_ready() const {
    WEFT_REQUIRE(!work,
                 "all_reduce: start() was called, and wait() was not; call wait() before the next "
                 "run() or start()");
    WEFT_REQUIRE(form.fits(tensor), "all_reduce: the tensor was " + form.text() +
                                        " at prepare_all_reduce() and is now " + now() +
                                        "; prepare the call again");
  }
  std::string now() const {
    return tensor.layout() == at::kStrided ? Form(tensor).text() : "not dense";
  }

  const Group group;
  internal::GroupBackend* const weft;  // the group's backend, if it is weft
  at::Tensor tensor;
  const ReduceOp op;
  const std::chrono::milliseconds timeout;  // 0: the group's
  const Form form;
  std::optional<net::DirectArgs> plain;  // none: the tensor needs a copy, or another backend
  Group::Work work;                      // what start() began
};

PreparedAllReduce::PreparedAllReduce(std::shared_ptr<Call> call) : call_(std::move(call)) {}

PreparedAllReduce Group::prepare_all_reduce(const at::Tensor& tensor, ReduceOp op,
                                            std::chrono::milliseconds timeout) const {
  WEFT_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided,
               std::string("prepare_all_reduce: the tensor is ") +
                   (tensor.defined() ? "not dense; call all_reduce() each time" : "undefined"));
  WEFT_REQUIRE(timeout.count() >= 0,
               "prepare_all_reduce: the timeout is negative; pass 0 for the group's");
  internal::require_apart("prepare_all_reduce", tensor);
  return PreparedAllReduce(std::make_shared<PreparedAllReduce::Call>(*this, tensor, op, timeout));
}

void PreparedAllReduce::run() {
  Call& call = *call_;
  call.require_ready();
  if (call.plain && internal::plain_type(call.tensor)) {
    net::DirectArgs& args = *call.plain;
    args.input = args.output = call.tensor.data_ptr();
    args.timeout = call.timeout.count() > 0 ? call.timeout : call.weft->timeout();
    if (call.weft->run_now(schedule::Collective::kAllReduce, args)) return;
  }
  const auto work = internal::all_reduce_by(call.group.backend(), call.tensor, call.op,
                                            /*async=*/false, call.timeout);
  if (work) work->wait();
}

void PreparedAllReduce::start() {
  Call& call = *call_;
  call.require_ready();
  call.work = internal::all_reduce_by(call.group.backend(), call.tensor, call.op, /*async=*/true,
                                      call.timeout);
}

void PreparedAllReduce::wait() {
  WEFT_REQUIRE(call_->work, "all_reduce: wait() without start(); call start() first");
  const Group::Work work = std::exchange(call_->work, nullptr);
  work->wait();
}

bool PreparedAllReduce::is_done() const { return !call_->work || call_->work->isCompleted(); }

}  // namespace weft::comm
