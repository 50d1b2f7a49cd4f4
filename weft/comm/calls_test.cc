// Calls that differ between the ranks, and ranks that do not come to a call.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "weft/base/testing/in_time.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace calls_test {

using namespace std::chrono_literals;
using Hosts = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

struct Way {
  const char* transport;
  Hosts hosts;
};
const std::vector<Way> kWays{{"shm", {}}, {"tcp", {}}, {"auto", {"a", "a", "b"}}};

void wait(const Group::Work& work) {
  if (work) work->wait();
}

// Over Gloo, NCCL and MPI, only the number of elements counts.
TEST(Calls, MayHaveDifferentShapesOfTheSameNumberOfElements) {
  const auto rank = [](const Group& group) {
    const bool flat = group.rank() == 1;
    const auto shaped = [&](at::IntArrayRef shape) {
      const at::Tensor t = at::full(shape, group.rank() + 1.0);
      return flat ? t.reshape({-1}) : t;
    };
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{}, {2, 3}, {300, 1000}, {1, 2, 1, 2, 3, 5}}) {
      at::Tensor t = shaped(shape);
      group.all_reduce(t);
      if (!t.eq(6).all().item<bool>()) return 1;
      group.broadcast(t = shaped(shape), 2);
      if (!t.eq(3).all().item<bool>()) return 2;
      at::Tensor all = at::zeros({3 * t.numel()});
      group.all_gather(all, shaped(shape));
      if (all.sum().item<float>() != 6.0F * static_cast<float>(t.numel())) return 3;
    }
    return 0;
  };
  for (const auto& [transport, hosts] : kWays)
    EXPECT_EQ(fork_ranks(3, transport, rank, hosts), std::vector<int>(3, 0)) << transport;
}

// Elements of different kinds are refused, also if they have the same bytes in all.
TEST(CallsTiming, OfOtherElementsAreAnErrorOnEveryRankWithinASecond) {
  const auto sums = [](const Group& group, SlowestRank& slowest) {
    return see_mismatch(group, slowest, "complex64[2]", "float32[4]", [&] {
      at::Tensor t = group.rank() == 1 ? at::ones({2}, at::kComplexFloat) : at::ones({4});
      group.all_reduce(t);
    });
  };
  const auto moves = [](const Group& group, SlowestRank& slowest) {
    return see_mismatch(group, slowest, "2-byte values[2]", "uint8[4]", [&] {
      const bool odd = group.rank() == 1;
      const auto type = odd ? at::kUInt16 : at::kByte;
      at::Tensor all = at::zeros({odd ? 6 : 12}, type);
      group.all_gather(all, at::zeros({odd ? 2 : 4}, type));
    });
  };
  for (const auto& [transport, hosts] : kWays) {
    for (const bool moving : {false, true}) {
      expect_within(1s, [&](SlowestRank& slowest) {
        const auto codes = fork_ranks(
            3, transport,
            [&](const Group& group) {
              return moving ? moves(group, slowest) : sums(group, slowest);
            },
            hosts);
        EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
      });
    }
  }
}

// Rank 0 gives two tensors and the others one. Their next call must not meet the second tensor.
TEST(CallsTiming, OfListsOfOtherLengthsAreAnErrorOnEveryRankWithinASecond) {
  for (const auto& [transport, hosts] : kWays) {
    expect_within(1s, [&](SlowestRank& slowest) {
      const auto rank = [&](const Group& group) {
        return see_mismatch(group, slowest, "float32[3] and 1 more)", "float32[3])", [&] {
          Tensors list;
          for (int i = group.rank() == 0 ? 0 : 1; i < 2; ++i) list.push_back(at::ones({3}));
          wait(group.backend().allreduce_coalesced(list, {}));
          at::Tensor next = at::zeros({3});
          group.all_reduce(next);
        });
      };
      EXPECT_EQ(fork_ranks(3, transport, rank, hosts), std::vector<int>(3, 0)) << transport;
    });
  }
}

TEST(Calls, OfAnEmptyListAreRefused) {
  replicate(2, [](const Group& group) {
    Tensors none;
    EXPECT_THROW(wait(group.backend().allreduce_coalesced(none, {})), Error);
    group.barrier();
  });
}

TEST(Calls, OfTensorsThatAreNotInMemoryAreRefusedInPlainWords) {
  replicate(2, [](const Group& group) {
    const auto check = [&](at::Tensor tensor, const std::string& what) {
      for (const bool async : {false, true}) {
        expect_refused(
            [&] { async ? wait(group.all_reduce_async(tensor)) : group.all_reduce(tensor); },
            Errc::kInvalidArgument, "dense tensors on the CPU or a CUDA device, not " + what);
      }
    };
    check(at::empty({3}, at::TensorOptions(at::kFloat).device(at::kMeta)), "a tensor on meta");
    check(at::eye(3).to_sparse_csr(), "a sparse tensor");
    check(at::quantize_per_tensor(at::ones({4}), 0.5, 0, at::kQInt8), "a quantized tensor");
    group.barrier();
  });
}

TEST(Calls, OfTensorsWhoseStorageIsTooShortAreRefused) {
  replicate(2, [](const Group& group) {
    // Memory that is freed for a while, as of sharded parameters.
    const auto shrunk = [](at::Tensor tensor) {
      tensor.storage().unsafeGetStorageImpl()->set_nbytes(tensor.storage().nbytes() - 1);
      return tensor;
    };
    const auto check = [&](const std::function<void()>& call) {
      expect_refused(call, Errc::kInvalidArgument, "but its storage has ");
    };
    const int peer = 1 - group.rank();
    for (at::Tensor tensor :
         {shrunk(at::ones({8})), shrunk(at::ones({4, 4}).t()), shrunk(at::ones({8}).slice(0, 4)),
          shrunk(at::ones({8}, at::kComplexFloat))}) {
      at::Tensor two = at::ones({2 * tensor.numel()}, tensor.options());
      check([&] { group.all_reduce(tensor); });
      check([&] { wait(group.all_reduce_async(tensor)); });
      check([&] { group.broadcast(tensor); });
      check([&] { group.all_gather(two, tensor); });
      check([&] { group.reduce_scatter(tensor, two); });
      check([&] { group.send(tensor, peer); });
      check([&] { group.recv(tensor, peer); });
    }
    group.barrier();
  });
}

TEST(Calls, OfPreparedTensorsWhoseStorageHasBecomeTooShortAreRefused) {
  replicate(2, [](const Group& group) {
    at::Tensor tensor = at::ones({8});
    PreparedAllReduce sum = group.prepare_all_reduce(tensor);
    tensor.storage().unsafeGetStorageImpl()->set_nbytes(0);
    expect_refused([&] { sum.run(); }, Errc::kInvalidArgument, "but its storage has 0");
    group.barrier();
  });
}

// Each rank broadcasts its own tensor, so none receives.
TEST(CallsTiming, BroadcastsOfDifferentRootsAreFoundWithoutAnotherCall) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_within(1s, [&](SlowestRank& slowest) {
      const auto rank = [&](const Group& group) {
        return see_mismatch(group, slowest, "root 0", "root 1", [&] {
          for (const auto limit = Deadline::in(5s); !limit.passed();) {
            at::Tensor t = at::ones({3});
            group.broadcast(t, group.rank());
            std::this_thread::sleep_for(5ms);  // as between the steps of a program
          }
        });
      };
      EXPECT_EQ(fork_ranks(2, transport, rank), std::vector<int>(2, 0)) << transport;
    });
  }
}

// Rank 0 is not patient. Rank 1 learns which operation of rank 0 was too long.
TEST(CallsTiming, ATimeoutNamesItsOperationOnOtherRanks) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_within(2s, [&](SlowestRank& slowest) {
      const auto rank = [&](const Group& group) {
        if (group.rank() == 0) group.backend().setTimeout(200ms);
        return ends_with(group.rank() == 0 ? Errc::kTimeout : Errc::kAborted, group, slowest, [&] {
          at::Tensor never = at::empty({3});
          try {
            group.recv(never, 1 - group.rank());
          } catch (const Error& error) {
            const std::string what = error.what();
            const bool good = what.find("recv, rank 0") != std::string::npos &&
                              what.find("exchange") == std::string::npos;
            if (!good) throw Error(Errc::kInternal, "names another operation: " + what);
            throw;
          }
        });
      };
      EXPECT_EQ(fork_ranks(2, transport, rank), std::vector<int>(2, 0)) << transport;
    });
  }
}

// Rank 0 waits for rank 1 in the memory of their host. Rank 2 is on another host.
TEST(CallsTiming, ATimeoutWithinAHostNamesItsOperationOnOtherHosts) {
  expect_within(2s, [&](SlowestRank& slowest) {
    const auto rank = [&](const Group& group) {
      if (group.rank() == 0) group.backend().setTimeout(200ms);
      return ends_with(group.rank() == 0 ? Errc::kTimeout : Errc::kAborted, group, slowest, [&] {
        at::Tensor t = at::ones({3});
        try {
          group.rank() == 1 ? group.recv(t, 2) : group.all_reduce(t);
        } catch (const Error& error) {
          const std::string what = error.what();
          const auto says = [&](const char* text) { return what.find(text) != std::string::npos; };
          if (says("did not arrive within 200 ms") && says("all_reduce") && !says("exchange"))
            throw;
          throw Error(Errc::kInternal, "names another operation: " + what);
        }
      });
    };
    EXPECT_EQ(fork_ranks(3, "auto", rank, {"a", "a", "b"}), std::vector<int>(3, 0));
  });
}

TEST(CallsTiming, AMonitoredBarrierDoesNotWaitForARankThatIsLost) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int victim : {0, 2}) {
      expect_within(2s, [&](SlowestRank& slowest) {
        const auto rank = [&](const Group& group) {
          if (group.rank() == victim) raise(SIGKILL);
          return ends_with(Errc::kPeerLost, group, slowest, [&] {
            try {
              group.backend().monitoredBarrier({}, false);
            } catch (const Error& error) {
              const bool good = error.context().peer == victim &&
                                error.context().operation == "monitored_barrier";
              if (!good) throw Error(Errc::kInternal, error.what());
              throw;
            }
          });
        };
        std::vector<int> expected(3, 0);
        expected[static_cast<std::size_t>(victim)] = -SIGKILL;
        EXPECT_EQ(fork_ranks(3, transport, rank), expected) << transport;
      });
    }
  }
}

// Python's timedelta.max is such a time.
TEST(Calls, MayHaveATimeoutBeyondTheEndOfTheClock) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto rank = [](const Group& group) {
      group.backend().setTimeout(std::chrono::milliseconds(86'400'000LL * 999'999'999LL));
      for (const std::int64_t count : {3, 300'000}) {
        at::Tensor t = at::ones({count}), box = at::empty({count});
        group.all_reduce(t);
        const auto work = group.all_reduce_async(t);
        work->wait();
        std::thread sender([&] { group.send(t, 1 - group.rank()); });
        group.recv(box, 1 - group.rank());
        sender.join();
        if (!box.eq(4).all().item<bool>()) return 1;
      }
      return 0;
    };
    EXPECT_EQ(fork_ranks(2, transport, rank), std::vector<int>(2, 0)) << transport;
  }
}

}  // namespace calls_test
}  // namespace weft::comm
