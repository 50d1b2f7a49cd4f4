#include "weft/data/text/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/data/sampler.h"
#include "weft/data/text/packed_rows.h"
#include "weft/data/text/windows.h"

namespace weft::data::text {
namespace {

using ::testing::HasSubstr;
using Pairs = std::map<std::pair<std::int64_t, std::int64_t>, int>;  // (input, target) -> count

constexpr TokenId kEnd = 0;

struct TokenBatch {
  std::int64_t rows = 0, length = 0;
  std::vector<std::int64_t> inputs, targets, positions, documents;
};

// The batches of a rank, in the order of a Sampler.
class Batches {
 public:
  Batches(std::shared_ptr<const Rows> rows, SamplerOptions options)
      : rows_(std::move(rows)), sampler_(of_size(options, rows_->size())) {}

  std::optional<TokenBatch> next() {
    const auto share = sampler_.next();
    if (!share) return std::nullopt;
    const auto length = static_cast<std::size_t>(rows_->length());
    TokenBatch batch{
        static_cast<std::int64_t>(share->indices.size()), rows_->length(), {}, {}, {}, {}};
    for (auto* values : {&batch.inputs, &batch.targets, &batch.positions, &batch.documents})
      values->resize(share->indices.size() * length);
    for (std::size_t i = 0; i < share->indices.size(); ++i) {
      const auto row = [&](std::vector<std::int64_t>& values) {
        return std::span(values).subspan(i * length, length);
      };
      rows_->read(
          share->indices[i], share->epoch,
          {row(batch.inputs), row(batch.targets), row(batch.positions), row(batch.documents)});
    }
    return batch;
  }
  void set_state(SamplerState state) { sampler_.set_state(state); }

 private:
  static SamplerOptions of_size(SamplerOptions options, std::int64_t size) {
    options.size = size;
    return options;
  }

  std::shared_ptr<const Rows> rows_;
  Sampler sampler_;
};

class TokenRows : public ::testing::Test {
 protected:
  // A file of tokens 1, 2, 3 …. Each token shows its position.
  TokenFile counted(std::int64_t count) {
    std::vector<TokenId> ids(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<TokenId>(i + 1);
    return write(ids, std::nullopt);
  }
  // A file of documents of these lengths, including the end token. Each other token shows its
  // position.
  TokenFile documents(const std::vector<int>& lengths) {
    std::vector<TokenId> ids;
    for (const int length : lengths) {
      for (int i = 0; i + 1 < length; ++i) ids.push_back(static_cast<TokenId>(ids.size()) + 1);
      ids.push_back(kEnd);
    }
    return write(ids, kEnd);
  }
  TokenFile write(const std::vector<TokenId>& ids, std::optional<TokenId> end_token) {
    const std::string path = dir_ / ("tokens" + std::to_string(files_++));
    TokenWriter writer(path, {1 << 20, 0, end_token});
    writer.append(ids);
    writer.finish();
    return TokenFile::open(path);
  }

 private:
  TempDir dir_;
  int files_ = 0;
};

// All global batches of an epoch from `from` on. Each has the sorted inputs and targets of all
// ranks.
std::vector<std::vector<std::int64_t>> epoch_of(const std::shared_ptr<const Rows>& rows,
                                                SamplerOptions options, SamplerState from = {}) {
  std::vector<std::vector<std::int64_t>> all;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    Batches batches(rows, options);
    batches.set_state(from);
    for (std::size_t b = 0; auto batch = batches.next(); ++b) {
      if (all.size() <= b) all.emplace_back();
      EXPECT_EQ(static_cast<std::int64_t>(batch->inputs.size()), batch->rows * batch->length);
      all[b].insert(all[b].end(), batch->inputs.begin(), batch->inputs.end());
      all[b].insert(all[b].end(), batch->targets.begin(), batch->targets.end());
    }
  }
  // The order of rows within a global batch depends on the world.
  for (auto& batch : all) std::sort(batch.begin(), batch.end());
  return all;
}

// Counts each (input, target) pair of an epoch over all ranks, without padding.
Pairs pairs_of(const std::shared_ptr<const Rows>& rows, SamplerOptions options) {
  Pairs pairs;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    Batches batches(rows, options);
    while (auto batch = batches.next()) {
      for (std::size_t i = 0; i < batch->inputs.size(); ++i) {
        EXPECT_EQ(batch->targets[i] == kNoTarget, batch->documents[i] == -1);
        if (batch->targets[i] != kNoTarget) ++pairs[{batch->inputs[i], batch->targets[i]}];
      }
    }
  }
  return pairs;
}

void expect_same_at_all_worlds_and_after_resume(const std::shared_ptr<const Rows>& rows) {
  const SamplerOptions options{.batch = 4, .seed = 5};
  const auto whole = epoch_of(rows, options);
  for (const int world : {2, 4}) {
    SamplerOptions sharded = options;
    sharded.world = world;
    EXPECT_EQ(epoch_of(rows, sharded), whole) << world;
    EXPECT_EQ(pairs_of(rows, sharded), pairs_of(rows, options)) << world;
    for (std::size_t done = 0; done < whole.size(); ++done) {
      const SamplerState from{
          0, std::min(static_cast<std::int64_t>(done) * options.batch, rows->size())};
      EXPECT_EQ(epoch_of(rows, sharded, from),
                (std::vector(whole.begin() + static_cast<std::ptrdiff_t>(done), whole.end())));
    }
  }
}

TEST_F(TokenRows, OfWindowsSeeEachTokenOnceAnEpochWhateverTheWorld) {
  for (const std::int64_t count : {2, 5, 9, 64, 65, 66, 100}) {
    const auto rows = std::make_shared<Windows>(counted(count), WindowOptions{.length = 4});
    Pairs want;
    for (std::int64_t i = 1; i < count; ++i) want[{i, i + 1}] = 1;
    for (const int world : {1, 2, 3, 4})
      EXPECT_EQ(pairs_of(rows, {.batch = 4, .seed = 2, .world = world}), want)
          << count << " " << world;
    expect_same_at_all_worlds_and_after_resume(rows);
  }
}

TEST_F(TokenRows, OfWindowsEvaluateInOrder) {
  const auto rows =
      std::make_shared<Windows>(counted(11), WindowOptions{.length = 3, .range = {1, 9}});
  Batches batches(rows, {.batch = 2, .order = Order::kSequential});
  const auto first = batches.next(), second = batches.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->inputs, (std::vector<std::int64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(first->targets, (std::vector<std::int64_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(second->inputs, (std::vector<std::int64_t>{8, 0, 0}));
  EXPECT_EQ(second->targets, (std::vector<std::int64_t>{9, kNoTarget, kNoTarget}));
  EXPECT_EQ(second->positions, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(second->documents, (std::vector<std::int64_t>{0, -1, -1}));
  EXPECT_FALSE(batches.next());
}

TEST_F(TokenRows, OfShiftedWindowsMoveFromEpochToEpochAndStayWhole) {
  for (const std::int64_t count : {16, 17, 23, 24, 100}) {
    const auto rows = std::make_shared<Windows>(
        counted(count),
        WindowOptions{.length = 8, .start = WindowOptions::Start::kShifted, .seed = 3});
    std::map<std::int64_t, int> starts;
    Batches batches(rows, {.batch = 3, .seed = 1});
    for (int epoch = 0; epoch < 40; ++epoch) {
      std::vector<std::int64_t> seen;
      while (auto batch = batches.next())
        seen.insert(seen.end(), batch->inputs.begin(), batch->inputs.end());
      std::sort(seen.begin(), seen.end());
      EXPECT_GE(static_cast<std::int64_t>(seen.size()), count - 15);
      // Each token occurs once, and none is missing between the first and the last.
      for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i - 1] + 1);
      EXPECT_LT(seen.back(), count);
      ++starts[seen.front()];
    }
    EXPECT_GE(starts.size(), 6u);
    expect_same_at_all_worlds_and_after_resume(rows);
  }
}

TEST_F(TokenRows, OfPackedDocumentsHoldEachPairOfEachDocumentOnce) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Random random(seed);
    std::vector<int> lengths(1 + random.below(60));
    for (int& length : lengths)
      length = 1 + static_cast<int>(random.below(random.below(5) == 0 ? 70 : 9));
    lengths.push_back(2);
    const auto rows = std::make_shared<PackedRows>(documents(lengths), PackOptions{.length = 16});
    Pairs want;
    std::int64_t at = 0;
    for (const int length : lengths) {
      for (int i = 1; i < length; ++i) ++want[{at + i, i + 1 < length ? at + i + 1 : kEnd}];
      at += length;
    }
    for (const int world : {1, 2, 4})
      EXPECT_EQ(pairs_of(rows, {.batch = 4, .seed = seed, .world = world}), want);
    expect_same_at_all_worlds_and_after_resume(rows);
  }
}

TEST_F(TokenRows, OfPackedDocumentsSayWhereEachBegins) {
  const auto rows = std::make_shared<PackedRows>(documents({6, 3, 4, 1}), PackOptions{.length = 6});
  Batches batches(rows, {.batch = 2, .order = Order::kSequential});
  const auto batch = batches.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->inputs, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 0, 10, 11, 12, 7, 8, 0}));
  EXPECT_EQ(batch->targets,
            (std::vector<std::int64_t>{2, 3, 4, 5, 0, kNoTarget, 11, 12, 0, 8, 0, kNoTarget}));
  EXPECT_EQ(batch->positions, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(batch->documents, (std::vector<std::int64_t>{0, 0, 0, 0, 0, -1, 0, 0, 0, 1, 1, -1}));
  EXPECT_EQ(rows->stats().documents, 3);  // A document of only an end token does not count.
  EXPECT_EQ(rows->stats().pieces, 3);
  EXPECT_EQ(rows->stats().used, 10);
  EXPECT_DOUBLE_EQ(rows->stats().waste(6), 2.0 / 12);
}

TEST_F(TokenRows, OfPackedDocumentsWasteLittle) {
  Random random(4);
  std::vector<int> lengths(2000);
  for (int& length : lengths) length = 2 + static_cast<int>(random.below(20) * random.below(20));
  const PackedRows rows(documents(lengths), {.length = 256});
  EXPECT_EQ(rows.stats().documents, 2000);
  EXPECT_LT(rows.stats().waste(256), 0.005);
  // The rows have at least as many positions as there are targets.
  EXPECT_GE(rows.stats().rows * 256, rows.stats().used);
}

TEST_F(TokenRows, AreRefusedWhereThereIsNothingToTrainOn) {
  const auto expect_refused = [](const std::function<void()>& call, const std::string& what) {
    try {
      call();
      ADD_FAILURE() << "not refused: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  };
  expect_refused([&] { Windows(counted(1), {.length = 4}); }, "1 tokens are too few");
  expect_refused(
      [&] { Windows(counted(7), {.length = 4, .start = WindowOptions::Start::kShifted}); },
      "8 are needed");
  expect_refused([&] { Windows(counted(9), {.length = 0}); }, "a length of 0");
  expect_refused(
      [&] {
        Windows(counted(9), {.length = 4, .range = {4, 10}});
      },
      "tokens 4 to 10 of 9");
  expect_refused([&] { PackedRows(counted(9), {.length = 4}); }, "names no end token");
  expect_refused([&] { PackedRows(documents({1, 1}), {.length = 4}); }, "nothing to predict");
}

}  // namespace
}  // namespace weft::data::text
