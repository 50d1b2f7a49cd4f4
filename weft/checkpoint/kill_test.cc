// If a process is killed at any of its file calls, either the previous checkpoint or the new one is
// complete.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "weft/base/file.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::checkpoint {
namespace {

int calls_left = 0;

void kill_at_call(int number) {
  calls_left = number;
  set_file_fault([](const FileEvent&) {
    if (--calls_left == 0) ::raise(SIGKILL);
    return 0;
  });
}

// Checks that the newest checkpoint has the tensors of its step, and returns the step.
std::int64_t newest_step(const std::string& dir) {
  const Latest found = latest(dir);
  EXPECT_TRUE(found.damaged.empty()) << found.damaged.front();
  EXPECT_TRUE(found.folder);
  const Checkpoint whole = load(found.folder.value());
  for (const Named& one : some_tensors(whole.step))
    EXPECT_TRUE(at::equal(whole.parts.at("model").at(one.name), one.tensor)) << one.name;
  EXPECT_EQ(whole.state.at("epoch"), std::to_string(whole.step));
  return whole.step;
}

Checkpoint whole_of(std::int64_t step) {
  Checkpoint checkpoint{step, {}, {{"epoch", std::to_string(step)}}};
  for (const Named& one : some_tensors(step)) checkpoint.parts["model"][one.name] = one.tensor;
  return checkpoint;
}

TEST(KilledSave, LeavesTheOldOrTheNewCheckpointCompleteAtEachCall) {
  const TempDir dir;
  save(dir.path(), whole_of(1));
  bool survived = false;
  int killed = 0;
  std::int64_t step = 1;
  for (int call = 1; !survived && call < 100; ++call) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      kill_at_call(call);
      save(dir.path(), whole_of(step + 1), {.keep = 2});
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    survived = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    killed += WIFSIGNALED(status) ? 1 : 0;
    const std::int64_t newest = newest_step(dir.path());
    EXPECT_TRUE(newest == step || newest == step + 1) << newest << " after " << step;
    step = newest;
  }
  EXPECT_TRUE(survived);
  EXPECT_GT(killed, 8);
  // A later save removes the leftovers of the killed processes.
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(entry.path().filename().string().rfind("step-", 0), 0U) << entry.path();
  }
}

TEST(KilledSave, OfOneRankFailsOnTheOthersAndKeepsTheOldCheckpoint) {
  const TempDir dir;
  const auto over_ranks = [&](std::int64_t step, int call) {
    return comm::fork_ranks(3, "shm", [&](const Group& group) {
      if (group.rank() == 1 && call > 0) kill_at_call(call);
      try {
        save(dir.path(), shards_of(step, some_tensors(step), flat_shards, group.rank(), 3), group);
      } catch (const Error& error) {
        return error.code() == Errc::kPeerLost || error.code() == Errc::kAborted ? 3 : 4;
      }
      return 0;
    });
  };
  EXPECT_EQ(over_ranks(1, 0), (std::vector<int>{0, 0, 0}));
  for (const int call : {1, 2, 3}) {  // it creates, writes and flushes its file
    EXPECT_EQ(over_ranks(2, call), (std::vector<int>{3, -SIGKILL, 3})) << call;
    EXPECT_EQ(newest_step(dir.path()), 1) << call;
  }
  EXPECT_EQ(over_ranks(2, 0), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(newest_step(dir.path()), 2);
}

}  // namespace
}  // namespace weft::checkpoint
