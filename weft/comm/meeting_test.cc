#include "weft/comm/internal/meeting.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/backend.h"
#include "weft/comm/init.h"
#include "weft/comm/internal/transport.h"
#include "weft/comm/testing/processes.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;

// Returns the error of rank 0 of 2 whose peer does not join, if the store has this entry for the
// lost rank.
Error meet(const std::string& lost) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set(kLostKey, std::vector<std::uint8_t>(lost.begin(), lost.end()));
  EXPECT_EQ(lost_rank(*store), lost == "1" ? std::optional(1) : std::nullopt);
  try {
    exchange_over(store, {0, 2, 2s})("hello");
  } catch (const Error& error) {
    return error;
  }
  return {Errc::kInternal, "the exchange succeeded"};
}

TEST(Meeting, AcceptsOnlyARankNumberAsTheLostRank) {
  const Error named = meet("1");
  EXPECT_EQ(named.code(), Errc::kPeerLost);
  EXPECT_EQ(named.context().peer, 1);
  for (const std::string nonsense : {"", "x", "1x", "-1", "99999999999"}) {
    const Error error = meet(nonsense);
    EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
    EXPECT_THAT(error.message(), testing::HasSubstr("names '" + nonsense + "' as the lost rank"));
  }
}

// A store whose process has ended.
class EndedStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>&) override {
    throw std::runtime_error("Connection was likely closed\nException raised from sendBytes");
  }
};

TEST(Meeting, ReportsAStoreThatEndsWhileRanksConnectInOneLine) {
  const auto forming = meet_at(c10::make_intrusive<EndedStore>(), {0, 2, 2s});
  try {
    forming.lost_peer();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
    EXPECT_THAT(error.message(), testing::HasSubstr("the store does not answer"));
    EXPECT_THAT(error.message(), testing::Not(testing::HasSubstr("\n")));
  }
}

TEST(Meeting, OwnAddressIsThatOnTheRouteToTheStoreOrAnError) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  try {
    address_towards("255.255.255.255");  // the kernel lets nobody connect to it
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kUnavailable);
    EXPECT_THAT(error.message(), testing::HasSubstr("the route to '255.255.255.255'"));
  }
}

// Three ranks form a group, rank 2 with other options. Returns what each throws.
std::vector<std::optional<Error>> errors_of(
    BackendOptions options, const std::function<void(BackendOptions&)>& change_on_rank_2) {
  options.timeout = 60s;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::optional<Error>> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    BackendOptions mine = options;
    if (rank == 2) change_on_rank_2(mine);
    threads.emplace_back([&errors, store, rank, mine] {
      try {
        form_group(store, rank, 3, mine);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Meeting, ARankThatCannotJoinEndsTheWaitsOfTheOthersAtOnce) {
  const std::vector<std::pair<std::function<void(BackendOptions&)>, std::string>> faults{
      {[](BackendOptions& options) { options.interface = "no-such-interface"; }, "interface"},
      {[](BackendOptions& options) { options.algorithm = "no-such-algorithm"; }, "algorithm"},
      {[](BackendOptions& options) { options.alike["recipe"] = "another"; }, "recipe"}};
  const auto began = std::chrono::steady_clock::now();
  for (const auto& [change, what] : faults) {
    const auto errors =
        errors_of({.transport = Transport::kTcp, .alike = {{"recipe", "one"}}}, change);
    ASSERT_TRUE(errors[2]) << what;
    EXPECT_NE(errors[2]->code(), Errc::kAborted) << errors[2]->what();
    EXPECT_THAT(errors[2]->message(), testing::HasSubstr(what));
    for (const std::size_t rank : {0, 1}) {
      ASSERT_TRUE(errors[rank]) << what;
      EXPECT_EQ(errors[rank]->code(), Errc::kAborted) << errors[rank]->what();
      EXPECT_EQ(errors[rank]->context().peer, 2);
      EXPECT_EQ(errors[rank]->message(), "rank 2 cannot join: " + errors[2]->message());
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

TEST(Meeting, RanksWithDifferentTransportsAreRefusedWithBothNames) {
  for (const Transport other : {Transport::kAuto, Transport::kShm, Transport::kMpi}) {
    const std::string name = to_string(other);
    const auto errors = errors_of({.transport = Transport::kTcp},
                                  [&](BackendOptions& options) { options.transport = other; });
    for (const auto& error : errors) {
      ASSERT_TRUE(error) << name;
      EXPECT_EQ(error->code(), Errc::kBadConfig) << error->what();
    }
    EXPECT_THAT(errors[0]->message(),
                testing::HasSubstr("rank 2 uses transport " + name + " and rank 0 tcp;"));
    EXPECT_THAT(errors[2]->message(),
                testing::HasSubstr("rank 0 uses transport tcp and rank 2 " + name + ";"));
  }
}

TEST(Meeting, ARankThatComesAfterAnotherHasGivenUpIsToldSo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto join = [&](int rank, std::chrono::milliseconds timeout) -> Error {
    try {
      form_group(store, rank, 2, {.transport = Transport::kTcp, .timeout = timeout});
    } catch (const Error& error) {
      return error;
    }
    return {Errc::kInternal, "the group was formed"};
  };
  EXPECT_EQ(join(0, 50ms).code(), Errc::kTimeout);
  const Error late = join(1, 60s);
  EXPECT_EQ(late.code(), Errc::kAborted) << late.what();
  EXPECT_THAT(late.message(), testing::HasSubstr("rank 0 cannot join: rank 1 did not join"));
}

Identity one_of_two(const Me& me) {
  Identity identity;
  identity.rank = me.id;
  identity.world = identity.local_world = 2;
  identity.master_port = me.port;
  identity.store_is_hosted_elsewhere = true;
  return identity;
}

InitOptions over_tcp() {
  InitOptions options;
  options.transport = Transport::kTcp;
  options.timeout = 20s;
  return options;
}

TEST(Meeting, RanksWithoutATimeoutMeet) {
  for (const Transport transport : {Transport::kAuto, Transport::kTcp}) {
    Processes processes(2, [&](const Me& me) {
      InitOptions options;
      options.transport = transport;
      options.timeout = std::chrono::milliseconds::max();
      at::Tensor t = at::ones({3});
      init(one_of_two(me), options).all_reduce(t);
      return at::equal(t, at::full({3}, 2.0F)) ? 0 : 1;
    });
    EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
  }
}

TEST(Meeting, AllRanksMayCallInitAgainAfterItHasFailed) {
  Processes processes(2, [&](const Me& me) {
    const Identity identity = one_of_two(me);
    InitOptions options = over_tcp();
    if (me.id == 1) options.interface = "no-such-interface";
    try {
      init(identity, options);
      return 1;
    } catch (const Error& error) {
      if ((error.code() == Errc::kAborted) != (me.id == 0)) return 2;
    }
    options.interface = "";
    for (int group = 0; group < 2; ++group) {
      at::Tensor t = at::ones({3});
      init(identity, options).all_reduce(t);
      if (!at::equal(t, at::full({3}, 2.0F))) return 3;
    }
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

// Process 2 takes the place of rank 1. The first loss stays in the store, as by the launcher.
TEST(Meeting, AllRanksMayCallInitAgainAfterARankWasReplaced) {
  Processes processes(3, [&](const Me& me) {
    Identity identity = one_of_two(me);
    InitOptions options = over_tcp();
    if (me.id == 2) {
      me.store->wait({"formed"}, 30s);
      identity.rank = 1;
      options.newcomer = true;
    }
    Group group = init(identity, options);
    if (me.id == 1) {
      me.store->wait({"formed"}, 30s);
      ::raise(SIGKILL);
    }
    if (me.id == 0) {
      me.store->set(lost_rank_key(identity.run_id, identity.restart_count), "1");
      me.store->set("formed", "yes");
      group = group.regroup({.size = 2, .keep_ranks = true});
    }
    options.newcomer = false;
    at::Tensor t = at::ones({3});
    init(identity, options).all_reduce(t);
    return at::equal(t, at::full({3}, 2.0F)) ? 0 : 1;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, -SIGKILL, 0}));
}

TEST(Meeting, OnlyOneOfTheGroupsOfInitFormsAgain) {
  Processes processes(2, [&](const Me& me) {
    const Identity identity = one_of_two(me);
    const Group first = init(identity, over_tcp()), second = init(identity, over_tcp());
    const Group next = second.regroup().regroup();
    try {
      first.regroup();
      return 1;
    } catch (const Error& error) {
      const std::string what = error.what();
      if (error.code() != Errc::kInvalidArgument ||
          what.find("another group of weft::init() has formed again") == std::string::npos)
        return 2;
    }
    for (const Group& group : {first, next}) {
      at::Tensor t = at::ones({3});
      group.all_reduce(t);
      if (!at::equal(t, at::full({3}, 2.0F))) return 3;
    }
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

TEST(Meeting, ARankThatFailsBeforeItReachesTheStoreEndsTheWaitsOfTheOthersAtOnce) {
  Processes processes(2, [](const Me& me) {
    const Identity identity = one_of_two(me);
    InitOptions options;
    options.timeout = 60s;
    if (me.id == 1) ::setenv("WEFT_TRANSPORT", "no-such-transport", 1);
    try {
      init(identity, options);
      return 1;
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool tells = what.find("unknown transport 'no-such-transport'") != std::string::npos;
      if (!tells || error.code() != (me.id == 0 ? Errc::kAborted : Errc::kBadConfig)) return 2;
    }
    ::unsetenv("WEFT_TRANSPORT");
    at::Tensor t = at::ones({3});
    init(identity, over_tcp()).all_reduce(t);  // they meet again in the same place
    return at::equal(t, at::full({3}, 2.0F)) ? 0 : 3;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

// A port that nobody uses, for a store that rank 0 hosts itself.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool good = ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(fd);
  if (!good) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

TEST(Meeting, AllRanksMayCallInitAgainWhileRank0HostsTheStoreOfTheFirstGroup) {
  const int port = free_port();
  Processes processes(2, [&](const Me& me) {
    Identity identity = one_of_two(me);
    identity.master_port = port;
    identity.store_is_hosted_elsewhere = false;
    const Group first = init(identity, over_tcp()), second = init(identity, over_tcp());
    for (const Group& group : {first, second}) {
      at::Tensor t = at::ones({3});
      group.all_reduce(t);
      if (!at::equal(t, at::full({3}, 2.0F))) return 1;
    }
    second.barrier();  // the store ends with rank 0
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

TEST(Meeting, ARankThatCannotJoinAgainEndsTheWaitsOfTheOthersAtOnce) {
  Processes processes(2, [&](const Me& me) {
    const Identity identity = one_of_two(me);
    InitOptions options = over_tcp();
    for (int attempt = 0; attempt < 2; ++attempt) {
      options.alike["recipe"] = me.id == 0 ? "one" : "two";
      try {
        init(identity, options);
        return 1;
      } catch (const Error& error) {
        if (error.code() == (me.id == 0 ? Errc::kAborted : Errc::kBadConfig)) continue;
        std::fprintf(stderr, "rank %d: %s\n", me.id, error.what());
        return 2;
      }
    }
    options.alike["recipe"] = "three";
    at::Tensor t = at::ones({3});
    init(identity, options).all_reduce(t);
    return at::equal(t, at::full({3}, 2.0F)) ? 0 : 3;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace weft::comm::internal
