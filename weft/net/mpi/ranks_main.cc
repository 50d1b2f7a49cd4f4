// The contract of Endpoint over MPI. All four ranks of an mpirun run each test together.
#include "weft/net/mpi/testing/ranks.h"

namespace weft::net::mpi {
namespace {

TEST_F(MpiContract, KnowsItsRankWorldAndName) {
  EXPECT_STREQ(group_->name(), "mpi");
  EXPECT_EQ(group_->implementation(),
            started_by([](const char* name) { return std::getenv(name); }));
  EXPECT_EQ(connect_mpi({.epoch = 7})->epoch(), 7u);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiContract, DeliversMessagesOfAllSizesUnchanged) {
  for (const std::size_t size :
       {0, 1, 63, 4096, 4097, 16 * 1024 + 1, 256 * 1024, 256 * 1024 + 1, 3 * 1024 * 1024 + 17}) {
    Bytes in(size);
    swap(7, rank_ ^ 1, pattern(size, rank_), in);
    EXPECT_TRUE(in == pattern(size, rank_ ^ 1)) << size;
  }
}

TEST_F(MpiContract, AllToAllOfLargeMessagesInOneCallDoesNotDeadlock) {
  std::vector<Bytes> out, in(kWorld, Bytes(1 << 20));
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int peer = 0; peer < kWorld; ++peer) out.push_back(pattern(1 << 20, rank_ * kWorld + peer));
  for (int peer = 0; peer < kWorld; ++peer) {
    sends.push_back({peer, out[static_cast<std::size_t>(peer)]});
    recvs.push_back({peer, in[static_cast<std::size_t>(peer)]});
  }
  group_->exchange(1, sends, recvs, soon());
  for (int peer = 0; peer < kWorld; ++peer)
    EXPECT_TRUE(in[static_cast<std::size_t>(peer)] == pattern(1 << 20, peer * kWorld + rank_));
}

TEST_F(MpiContract, UnexpectedMessagesKeepTheirOrderOnEachChannel) {
  for (int i = 0; rank_ == 0 && i < 50; ++i) {
    for (Channel channel : {5, 6})
      group_->send(1, channel, pattern(1000 + static_cast<std::size_t>(i), i), soon());
  }
  meet();
  for (Channel channel : {6, 5}) {
    for (int i = 0; rank_ == 1 && i < 50; ++i) {
      Bytes in(1000 + static_cast<std::size_t>(i));
      group_->recv(0, channel, in, soon());
      EXPECT_TRUE(in == pattern(in.size(), i));
    }
  }
}

TEST_F(MpiContract, SendsToItself) {
  for (const std::size_t size : {100, 5000}) {
    Bytes in(size);
    swap(3, rank_, pattern(size, 1), in);
    EXPECT_TRUE(in == pattern(size, 1));
  }
}

TEST_F(MpiContract, AwaitAnyReturnsTheSenderAndLeavesTheMessage) {
  if (rank_ == 2) group_->send(0, 9, pattern(100, 2), soon());
  if (rank_ == 0) {
    EXPECT_EQ(group_->await_any(9, soon()), 2);
    EXPECT_EQ(group_->await_any(9, soon()), 2);
    Bytes in(100);
    group_->recv(2, 9, in, soon());
    EXPECT_TRUE(in == pattern(100, 2));
    EXPECT_EQ(error_of([&] { group_->await_any(9, Deadline::in(5ms)); }).code(), Errc::kTimeout);
    EXPECT_FALSE(group_->failure());  // no transfer was started, so the group is intact
  }
  meet();
}

TEST_F(MpiContract, AReceiveFromAnyRankTakesOnlyMessagesOfRanksThatItMay) {
  if (rank_ == 1 || rank_ == 2) group_->send(0, 9, pattern(5000, rank_), soon());
  if (rank_ == 0) {
    while (group_->await_any(9, soon()) != 1) sched_yield();
    Bytes in(5000);
    const auto may = [](int peer) { return peer != 1; };
    EXPECT_EQ(group_->recv_any(9, in, soon(), may), 2);
    EXPECT_TRUE(in == pattern(5000, 2));
    EXPECT_EQ(error_of([&] { group_->recv_any(9, in, Deadline::in(5ms), may); }).code(),
              Errc::kTimeout);
    EXPECT_FALSE(group_->failure());  // no transfer was started
    EXPECT_EQ(group_->recv_any(9, in, soon(), [](int) { return true; }), 1);
    EXPECT_TRUE(in == pattern(5000, 1));
  }
  meet();
}

TEST_F(MpiContract, ManyThreadsOfOneRankUseTheirOwnChannels) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 10; ++i) {
        Bytes in(30'000);
        swap(static_cast<Channel>(thread), rank_ ^ 1, pattern(30'000, i + rank_), in);
        EXPECT_TRUE(in == pattern(30'000, i + (rank_ ^ 1)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(MpiContract, ADeadlineEndsAWaitNamesThePeerAndEndsTheGroupForAll) {
  Bytes in(8);
  if (rank_ == 0) {
    const Error error = error_of([&] { group_->recv(1, 1, in, Deadline::in(30ms)); });
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_EQ(error.context().peer, 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    EXPECT_EQ(error_of([&] { group_->recv(1, 1, in, soon()); }).code(), Errc::kAborted);
  } else if (rank_ == 2) {
    const Error error = error_of([&] { group_->recv(1, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
    EXPECT_EQ(error.context().peer, 0);
  }
  meet();
}

TEST_F(MpiContract, ADifferentLengthIsAnErrorWithBothLengths) {
  for (const bool posted_first : {false, true}) {
    auto pair = connect_mpi({.epoch = posted_first});
    if (posted_first || rank_ != 1) {
      if (rank_ == 0) error_of([&] { pair->send(1, 4, pattern(16, 0), soon()); });
    }
    if (!posted_first) meet();
    if (rank_ == 1) {
      Bytes in(8);
      const Error error = error_of([&] { pair->recv(0, 4, in, soon()); });
      EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("receives 8 bytes"));
      EXPECT_THAT(error.what(), HasSubstr("sent 16"));
    }
    meet();
  }
}

TEST_F(MpiContract, FailEndsPendingAndLaterCallsAndCitesTheFirstError) {
  if (rank_ == 0) {
    std::thread failing([&] { group_->fail(Error(Errc::kInternal, "the first")); });
    Bytes in(8);
    const Error pending = error_of([&] { group_->recv(1, 1, in, soon()); });
    failing.join();
    group_->fail(Error(Errc::kInternal, "the second"));
    const Error later = error_of([&] { group_->await_any(1, soon()); });
    for (const Error& error : {pending, later}) {
      EXPECT_EQ(error.code(), Errc::kAborted);
      EXPECT_THAT(error.what(), HasSubstr("the first"));
    }
    EXPECT_THAT(group_->failure()->what(), HasSubstr("the first"));
  }
  meet();
}

TEST_F(MpiContract, AbortEndsTheCallsOfAllRanksWhichNameTheAbortedRankAndTheReason) {
  if (rank_ == 0) group_->abort(Error(Errc::kInternal, "the cause"));
  Bytes in(8);
  for (int call = 0; call < 2; ++call) {
    const Error error = error_of([&] { group_->recv(rank_ ^ 1, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("the cause"));
    if (rank_ != 0) {
      EXPECT_EQ(error.context().peer, 0);
    }
  }
  meet();
}

TEST_F(MpiContract, ADestroyedEndpointIsLostForAllRanksThatWait) {
  if (rank_ == 2) {
    group_.reset();
  } else {
    Bytes in(8);
    const int from = rank_ == 3 ? 0 : 2;
    const Error error = error_of([&] { group_->recv(from, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
    EXPECT_EQ(error.context().peer, 2);
    EXPECT_EQ(error.context().rank, rank_);
    EXPECT_EQ(error_of([&] { group_->recv(2, 1, in, soon()); }).code(), Errc::kPeerLost);
    const Error other = error_of([&] { group_->recv(from ^ 1, 1, in, soon()); });
    EXPECT_EQ(other.code(), Errc::kPeerLost) << other.what();
  }
  meet();
}

TEST_F(MpiContract, MessagesSentBeforeLeavingAreStillReceived) {
  const auto large = pattern(3 << 20, 4), little = pattern(100, 5);
  if (rank_ == 0) {
    group_->send(1, 2, large, soon());
    group_->send(1, 2, little, soon());
    group_.reset();
  } else if (rank_ == 1) {
    Bytes in(large.size()), end(little.size());
    group_->recv(0, 2, in, soon());
    group_->recv(0, 2, end, soon());
    EXPECT_TRUE(in == large && end == little);
    EXPECT_FALSE(group_->failure());  // leaving in order is not a loss
  }
  meet();
}

TEST_F(MpiContract, AnInvalidPeerIsTheCallersErrorAndLeavesTheGroupIntact) {
  EXPECT_EQ(error_of([&] { group_->send(kWorld, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_EQ(error_of([&] { group_->recv(-1, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiContract, LargeMessagesWaitForTheirReceivesAndNothingIsLost) {
  const auto block = pattern(2 << 20, 1);
  if (rank_ == 0) {
    for (int i = 0; i < 6; ++i) group_->send(1, 1, block, soon());
  } else if (rank_ == 1) {
    EXPECT_EQ(group_->await_any(1, soon()), 0);
    for (int i = 0; i < 6; ++i) {
      Bytes in(block.size());
      group_->recv(0, 1, in, soon());
      ASSERT_TRUE(in == block);
    }
  }
  meet();
}

TEST_F(MpiContract, SubgroupsNumberTheirRanksInTheirOwnOrder) {
  const std::vector<int> ranks = rank_ % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
  const auto pair = connect_mpi({.ranks = ranks});
  ASSERT_EQ(pair->world(), 2);
  EXPECT_EQ(pair->rank(), rank_ == ranks[0] ? 0 : 1);
  Bytes in(5000);
  const auto out = pattern(5000, rank_);
  const Send send{1 - pair->rank(), out};
  const Recv recv{1 - pair->rank(), in};
  pair->exchange(1, {&send, 1}, {&recv, 1}, soon());
  EXPECT_TRUE(in == pattern(5000, ranks[static_cast<std::size_t>(1 - pair->rank())]));
  EXPECT_EQ(error_of([&] { connect_mpi({.ranks = {(rank_ + 1) % kWorld}}); }).code(),
            Errc::kInvalidArgument);
  EXPECT_EQ(error_of([] { connect_mpi({.ranks = {0, 0}}); }).code(), Errc::kInvalidArgument);
}

TEST_F(MpiContract, ExchangesTextsOfAllLengths) {
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 3000, static_cast<char>('a' + rank));
  };
  const auto all = exchange(*group_, text(rank_), soon());
  for (int peer = 0; peer < kWorld; ++peer)
    EXPECT_EQ(all[static_cast<std::size_t>(peer)], text(peer));
}

}  // namespace
}  // namespace weft::net::mpi

// Some launchers kill all ranks as soon as one ends without MPI_Finalize. So each rank writes its
// result to a file in $WEFT_RANKS_DIR, if that is set, and waits for the others' files.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const char* folder = std::getenv("WEFT_RANKS_DIR");
  if (folder == nullptr) return failed;
  std::ofstream(std::string(folder) + "/" + std::to_string(getpid()))
      << (failed == 0 ? "passed" : "failed");
  const auto all_there = [&] {
    const std::filesystem::directory_iterator files(folder);
    return std::distance(begin(files), end(files)) == 4;
  };
  for (const auto end = weft::Deadline::in(std::chrono::seconds(20));
       !all_there() && !end.passed();)
    sched_yield();
  return failed;
}
