// A crash or a power cut at any instant of a save leaves the old checkpoint or the new one: every
// state in which the disk may then be is loaded (base/testing/crash_disk.h).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "weft/base/testing/crash_disk.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/comm/replicate.h"

namespace weft::checkpoint {
namespace crash_test {

namespace fs = std::filesystem;

// A checkpoint by its number: 1, 2, …, in the order of the saves. 0 is no checkpoint.
struct Save {
  int number = 0;
  std::int64_t step = 0;
};

// The folders are in memory: the states of the disk come from the model, not from a disk.
struct MemoryFolder : TempDir {
  MemoryFolder() : TempDir(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}
};

std::vector<Named> tensors_of(int number) { return some_tensors(number, 3); }

struct Scenario {
  const char* name;
  int ranks;
  bool async;
  int keep;
  std::vector<Save> before, recorded;
};

const std::vector<Scenario> kScenarios = {
    {"the first", 1, false, 2, {}, {{1, 1}}},
    {"the second, which removes the first", 1, false, 1, {{1, 1}}, {{2, 2}}},
    {"the same step again", 1, false, 2, {{1, 1}}, {{2, 1}}},
    {"three ranks", 3, false, 1, {{1, 1}}, {{2, 2}}},
    {"three ranks, the same step again", 3, false, 2, {{1, 1}}, {{2, 1}}},
    {"asynchronous, two ranks", 2, true, 1, {{1, 1}}, {{2, 2}, {3, 3}}},
};

// Saves by all ranks together. Calls done() after each, on one rank.
void run(const std::string& dir, const Scenario& how, const std::vector<Save>& saves,
         const std::function<void(const Save&)>& done) {
  replicate(how.ranks, [&](const Group& group) {
    std::optional<AsyncSaver> saver;
    if (how.async) saver.emplace(group);
    for (const Save& one : saves) {
      const auto tensors = tensors_of(one.number);
      Shards mine = shards_of(one.step, tensors, flat_shards, group.rank(), group.size());
      mine.parts["optimizer"] = flat_shards(tensors, group.rank(), group.size());
      if (saver) {
        saver->save(dir, mine, {how.keep});
        for (const Named& each : tensors) each.tensor.zero_();
        EXPECT_FALSE(saver->wait()->error);
      } else {
        save(dir, mine, group, {how.keep});
      }
      group.barrier();
      if (group.rank() == 0) done(one);
      group.barrier();
    }
  });
}

// The recorded calls of a scenario, and by number of calls the newest checkpoint that was complete.
struct Recording {
  std::vector<RecordedCall> calls;
  std::map<std::size_t, int> complete;

  int complete_after(std::size_t calls_made) const {
    return std::prev(complete.upper_bound(calls_made))->second;
  }
};

Recording record(const std::string& root, const Scenario& how, int first) {
  FileRecorder recorder(root);
  Recording recording{{}, {{0, first}}};
  run(root + "/ckpt", how, how.recorded,
      [&](const Save& one) { recording.complete[recorder.calls().size()] = one.number; });
  recording.calls = recorder.calls();
  return recording;
}

// The number of the checkpoint that a resumed run loads; -1 for one whose tensors are wrong.
int loaded(const std::string& dir) {
  const Latest newest = latest(dir);
  if (!newest.damaged.empty()) return -1;
  if (!newest.folder) return 0;
  const Checkpoint whole = load(*newest.folder);
  for (int number = 1; number <= 3; ++number) {
    const auto tensors = tensors_of(number);
    const bool same = std::all_of(tensors.begin(), tensors.end(), [&](const Named& one) {
      return at::equal(whole.parts.at("model").at(one.name), one.tensor) &&
             at::equal(whole.parts.at("optimizer").at(one.name), one.tensor);
    });
    if (same) return number;
  }
  return -1;
}

// Counts of states.
struct Found {
  std::size_t states = 0, of_old = 0, of_new = 0, wrong = 0;
};

// Loads every state of the disk that a crash in the recorded calls may leave.
Found load_all(CrashDisk disk, const Recording& recording, const CrashSearch& search) {
  Found found;
  const MemoryFolder dir;
  std::map<DiskTree, int> known;  // a state may come up again after a later call
  found.states =
      for_each_crash(disk, recording.calls, search, [&](const DiskTree& left, std::size_t calls) {
        const auto [it, is_new] = known.try_emplace(left);
        if (is_new) {
          fs::remove_all(dir / "left");
          write_tree(left, dir / "left");
          it->second = loaded(dir / "left/ckpt");
        }
        const int old = recording.complete_after(calls), now = it->second;
        const bool is_last = calls >= recording.complete.rbegin()->first;
        (now == old ? found.of_old : now == old + 1 && !is_last ? found.of_new : found.wrong)++;
      });
  return found;
}

// Records a scenario in `root`, and loads every state. `change` may change the calls.
Found explore(const std::string& root, const Scenario& how, const CrashSearch& search,
              const std::function<void(Recording&)>& change = nullptr) {
  fs::create_directories(root);
  run(root + "/ckpt", how, how.before, [](const Save&) {});
  const CrashDisk disk(root);
  Recording recording = record(root, how, how.before.empty() ? 0 : 1);
  if (change) change(recording);
  return load_all(disk, recording, search);
}

TEST(CrashedSave, LeavesTheOldOrTheNewCheckpointInASampleOfTheStates) {
  const MemoryFolder dir;
  const Found found = explore(dir / "a", kScenarios[3], {.most = 2});
  EXPECT_EQ(found.wrong, 0U);
  EXPECT_GT(found.states, 40U);
  EXPECT_GT(found.of_old, 30U);
  EXPECT_GT(found.of_new, 2U);
}

// The search itself: it finds the states that a save without one of its flushes would lose.
TEST(CrashedSave, WithoutAFlushLosesTheCheckpointInSomeState) {
  const auto without = [](const char* end) {
    const MemoryFolder dir;
    return explore(dir / "a", kScenarios[2], {.most = 8}, [&](Recording& recording) {
      for (RecordedCall& call : recording.calls) {
        const bool is_here = call.call == FileCall::kFlush && call.path.ends_with(end);
        if (is_here) call = {FileCall::kWrite, call.path, "", ""};  // the number of calls stays
      }
    });
  };
  EXPECT_GT(without("model.safetensors").wrong, 0U);
  EXPECT_GT(without("manifest").wrong, 0U);
  EXPECT_GT(without(".tmp-step-00000001").wrong, 0U);
  EXPECT_GT(without("ckpt").wrong, 0U);
  EXPECT_EQ(without("no such file").wrong, 0U);
}

TEST(CrashedSaveSlow, LeavesTheOldOrTheNewCheckpointInTenThousandStates) {
  std::size_t states = 0;
  for (const Scenario& scenario : kScenarios) {
    SCOPED_TRACE(scenario.name);
    const MemoryFolder dir;
    const Found found = explore(dir / "a", scenario, {.most = 600});
    EXPECT_EQ(found.wrong, 0U);
    EXPECT_GT(found.of_old, 0U);
    EXPECT_GT(found.of_new, 0U);
    states += found.states;
  }
  EXPECT_GE(states, 10'000U);
  RecordProperty("states", static_cast<int>(states));
}

// A run crashes in a save, resumes, and crashes in the save that follows.
TEST(CrashedSaveSlow, OverALeftoverOfACrashLeavesTheOldOrTheNewCheckpoint) {
  std::size_t states = 0;
  for (const Scenario& scenario : {kScenarios[3], kScenarios[4], kScenarios[5]}) {
    SCOPED_TRACE(scenario.name);
    const MemoryFolder dir;
    run(dir / "first/ckpt", scenario, scenario.before, [](const Save&) {});
    CrashDisk disk(dir / "first");
    Scenario again = scenario;
    again.recorded.resize(1);
    const Recording first = record(dir / "first", again, 1);
    std::vector<DiskTree> leftovers;
    for_each_crash(disk, first.calls, {.most = 2, .seed = 5},
                   [&](const DiskTree& left, std::size_t) { leftovers.push_back(left); });
    for (std::size_t i = 0; i < leftovers.size();
         i += std::max<std::size_t>(1, leftovers.size() / 12)) {
      const std::string root = dir / std::to_string(i);
      write_tree(leftovers[i], root);
      const int old = loaded(root + "/ckpt");
      ASSERT_TRUE(old == 1 || old == 2);
      again.recorded[0].number = old + 1;
      const CrashDisk left(root);
      const Found found = load_all(left, record(root, again, old), {.most = 5, .seed = i});
      EXPECT_EQ(found.wrong, 0U) << i;
      states += found.states;
      fs::remove_all(root);
    }
  }
  EXPECT_GT(states, 2'000U);
  RecordProperty("states", static_cast<int>(states));
}

}  // namespace crash_test
}  // namespace weft::checkpoint
