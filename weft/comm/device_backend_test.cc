// Calls of the backend for devices. A backend of the test takes the place of NCCL, and tensors on
// the device "meta" the place of those on a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/group.h"
#include "weft/comm/internal/device_call.h"
#include "weft/comm/internal/weft_backend.h"
#include "weft/comm/replicate.h"

namespace weft::comm {
namespace device_backend_test {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What the calls have given to the backend.
struct Given {
  int calls = 0;
  bool is_contiguous = true;
  std::vector<std::chrono::milliseconds> waits;  // timeouts of wait()
};

// Complete after the first wait().
class DeviceWork final : public c10d::Work {
 public:
  explicit DeviceWork(Given& given) : given_(given) {}
  bool isCompleted() override { return is_waited_; }
  bool wait(std::chrono::milliseconds timeout) override {
    given_.waits.push_back(timeout);
    is_waited_ = true;
    return true;
  }

 private:
  Given& given_;
  bool is_waited_ = false;
};

class Devices final : public c10d::Backend {
 public:
  Devices(int rank, int size, Given& given) : Backend(rank, size), given_(given) {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return take({tensors});
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return take({tensors});
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions&) override { return take({tensors}); }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    return take({{output, input}});
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    return take({{output, input}});
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                        std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    return take({{output, input}});
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return take({outputs.at(0), inputs});
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions&) override {
    return take({inputs.at(0), outputs});
  }
  WorkPtr send(Tensors& tensors, int, int) override { return take({tensors}); }
  WorkPtr recv(Tensors& tensors, int, int) override { return take({tensors}); }

 private:
  WorkPtr take(const TensorLists& lists) {
    ++given_.calls;
    for (const Tensors& list : lists) {
      for (const at::Tensor& tensor : list)
        given_.is_contiguous = given_.is_contiguous && tensor.is_contiguous();
    }
    return c10::make_intrusive<DeviceWork>(given_);
  }

  Given& given_;
};

at::Tensor on_device(at::IntArrayRef sizes) { return at::empty(sizes, at::device(at::kMeta)); }

void use_devices(const Group& group, Given& given) {
  dynamic_cast<internal::WeftBackend&>(group.backend())
      .use_for_devices(c10::make_intrusive<Devices>(group.rank(), group.size(), given));
}

TEST(DeviceBackend, GetsContiguousCopiesOfOtherTensors) {
  replicate(2, [](const Group& group) {
    Given given;
    use_devices(group, given);
    at::Tensor one = on_device({3, 4}).t(), two = on_device({6, 4}).t();
    group.all_reduce(one);
    group.broadcast(one, 0);
    group.reduce(one, 0, ReduceOp::kSum);
    group.all_gather(two, one);
    group.reduce_scatter(one, two, ReduceOp::kSum);
    at::Tensor other = on_device({3, 4}).t();
    group.all_to_all(other, one);
    group.send(one, 0);
    group.recv(one, 0);
    TensorLists lists{{one, other}};
    Tensors list{on_device({3, 4}).t()};
    group.backend().allgather(lists, list, c10d::AllgatherOptions());
    group.backend().scatter(list, lists, c10d::ScatterOptions());
    EXPECT_EQ(given.calls, 10);
    EXPECT_TRUE(given.is_contiguous);
  });
}

TEST(DeviceBackend, WritesItsResultsToTensorsThatAreNotContiguous) {
  const at::Tensor values = at::arange(6, at::kFloat).view({2, 3});
  at::Tensor result = at::zeros({3, 2}).t();
  const auto fill = [&](at::Tensor& dense) {
    EXPECT_TRUE(dense.is_contiguous());
    dense.view({6}).copy_(values.view({6}));
    return WorkPtr();
  };
  internal::device_call("all_reduce", result, fill);
  EXPECT_TRUE(at::equal(result, values));
  // Memory of its own goes to the backend as it is.
  at::Tensor flat = at::zeros({2, 3});
  internal::device_call("all_reduce", flat, [&](at::Tensor& dense) {
    EXPECT_TRUE(dense.is_same(flat));
    return WorkPtr();
  });
  expect_refused([&] { internal::device_call("all_reduce", at::zeros({1}).expand({3}), fill); },
                 Errc::kInvalidArgument, "is expanded");
}

TEST(DeviceBackend, IsNotAskedForReceivesThatItDoesNotHave) {
  replicate(2, [](const Group& group) {
    Given given;
    use_devices(group, given);
    Tensors strided{on_device({3, 4}).t()};
    expect_refused([&] { group.backend().recv(strided, 0, 0); }, Errc::kInvalidArgument,
                   "must be contiguous");
    Tensors flat{on_device({3})};
    expect_refused([&] { group.backend().recvAnysource(flat, 0); }, Errc::kInvalidArgument,
                   "from one rank");
    EXPECT_EQ(given.calls, 0);
  });
}

// A wait with a timeout would end NCCL's communicator.
TEST(DeviceBackend, MessagesAreAwaitedWithoutATimeoutOfTheCaller) {
  replicate(2, [](const Group& group) {
    Given given;
    use_devices(group, given);
    at::Tensor tensor = on_device({3});
    group.send(tensor, 0);
    group.recv(tensor, 0);
    EXPECT_EQ(given.waits, std::vector<std::chrono::milliseconds>(2, kNoTimeout));
  });
}

TEST(DeviceBackend, SumsOfMoreThanTwoRanksHaveAnOrderOfItsOwn) {
  replicate(3, [](const Group& group) {
    Given given;
    EXPECT_TRUE(group.has_ordered_sums());
    use_devices(group, given);
    EXPECT_FALSE(group.has_ordered_sums());
  });
}

}  // namespace device_backend_test
}  // namespace weft::comm
