// A flipped bit in any file of a checkpoint is found before one of its bytes reaches a tensor.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/checkpoint/testing/dealt.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/comm/replicate.h"

namespace weft::checkpoint {
namespace flip_test {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 44'000;  // more than one chunk of the checksums

// The files of a checkpoint that `ranks` ranks have written, with a part that has several chunks.
class Saved {
 public:
  explicit Saved(int ranks) : folder_(dir_ / "step-00000007") {
    replicate(ranks, [&](const Group& group) {
      Shards mine = shards_of(7, tensors_, flat_shards, group.rank(), ranks);
      mine.parts["optimizer"] = column_shards(tensors_, group.rank(), ranks);
      save(dir_.path(), mine, group);
    });
    for (const auto& entry : fs::directory_iterator(folder_))
      files_.emplace_back(entry.path().string(), static_cast<std::uint64_t>(entry.file_size()));
    std::sort(files_.begin(), files_.end());
  }
  const std::string& folder() const { return folder_; }

  // Flips a bit; the same again flips it back.
  void flip(std::size_t file, std::uint64_t bit) const {
    checkpoint::flip(files_[file].first, static_cast<std::streamoff>(bit / 8), 1 << (bit % 8));
  }
  std::size_t files() const { return files_.size(); }
  std::uint64_t bits(std::size_t file) const { return 8 * files_[file].second; }
  const std::string& name(std::size_t file) const { return files_[file].first; }
  // True if each tensor has its right values, or is as it was: all ones.
  bool holds_no_wrong_value(const std::vector<Named>& read) const {
    for (std::size_t i = 0; i < read.size(); ++i) {
      const at::Tensor& tensor = read[i].tensor;
      const at::Tensor good = tensor.eq(tensors_[i].tensor).logical_or_(tensor.eq(1));
      if (!good.all().item<bool>()) return false;
    }
    return true;
  }
  std::vector<Named> ones() const {
    std::vector<Named> made;
    for (const Named& one : tensors_) made.push_back({one.name, at::ones_like(one.tensor)});
    return made;
  }

 private:
  const TempDir dir_{::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""};
  const std::string folder_;
  const std::vector<Named> tensors_ = some_tensors(7, kRows);
  std::vector<std::pair<std::string, std::uint64_t>> files_;
};

// Reads both parts. Returns whether an error was found; none of its bytes may be in a tensor.
bool finds_damage(const Saved& saved) {
  for (const char* part : {"model", "optimizer"}) {
    const auto tensors = saved.ones();
    Slices slices;
    for (const Named& one : tensors) slices.push_back(whole_slice(one.name, one.tensor));
    bool found = false;
    try {
      Reader(saved.folder()).fill(part, slices);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt) << error.message();
      found = true;
    }
    EXPECT_TRUE(saved.holds_no_wrong_value(tensors));
    if (found) return true;
  }
  return false;
}

void flip_bits(const Saved& saved, int count, std::uint64_t seed) {
  ASSERT_FALSE(finds_damage(saved));
  Random numbers(seed);
  for (int i = 0; i < count; ++i) {
    // Each file is as likely as another, so that the small ones are not left out.
    const std::size_t file = numbers.below(saved.files());
    const std::uint64_t bit = numbers.below(saved.bits(file));
    saved.flip(file, bit);
    EXPECT_TRUE(finds_damage(saved)) << saved.name(file) << ", bit " << bit;
    saved.flip(file, bit);
  }
  EXPECT_FALSE(finds_damage(saved));
}

TEST(FlippedBits, AreFoundBeforeTheyReachATensor) { flip_bits(Saved(2), 10, 1); }

TEST(FlippedBitsSlow, AreFoundBeforeTheyReachATensorTenThousandTimes) {
  const Saved saved(3);
  EXPECT_EQ(saved.files(), 10U);  // three of each part, two indices, the state, the manifest
  flip_bits(saved, 10'000, 2);
}

}  // namespace flip_test
}  // namespace weft::checkpoint
