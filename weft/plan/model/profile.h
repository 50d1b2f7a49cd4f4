// Profile: a model as blocks whose times and sizes were measured (weft plan profile).
//
//   Model m = default_model("gpt");
//   m.profile = std::make_shared<const Profile>(load_profile("blocks.toml"));
//
// With a family, the measured times replace those of the family's blocks, and scale those of blocks
// that are divided over tp, cp or ep. Family::kMeasured has the profile's blocks alone; these can
// be divided over dp, fsdp and pp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/plan/model/blocks.h"

namespace weft::plan {

// Most blocks, measurements and bytes of a profile that is written or read.
inline constexpr std::size_t kMaxProfileBlocks = 10'000, kMaxProfileBatches = 16,
                             kMaxProfileBytes = 8 << 20;

struct MeasuredBlock {
  std::string name;
  // Seconds, by number of samples: one for each of Profile::batches.
  std::vector<double> forward, backward;
  double parameters = 0;
  double output_bytes = 0;  // Of a sample.
  double kept_bytes = 0;    // Activations of a sample from forward to backward.
  double flops = 0;         // Of a sample's forward. 0: unknown.
  bool operator==(const MeasuredBlock&) const = default;
};

struct Profile {
  std::string name;
  std::string machine;          // Identity of the machine (calibration.h).
  int ranks = 1;                // Processes that computed at once.
  std::int64_t tokens = 0;      // Of a sample. 0: images.
  std::vector<double> batches;  // Samples of each measurement, ascending.
  std::vector<MeasuredBlock> blocks;
  bool operator==(const Profile&) const = default;
};

// Seconds for a number of samples: on the line through the two nearest measurements, and at least
// the smallest measurement's share. With one measurement, in proportion to the samples.
double seconds_for(const Profile& profile, const std::vector<double>& seconds, double samples);

// The profile's blocks with one operator each. Throws Error(kInvalidArgument) for tp, cp or ep
// above 1.
Blocks measured_blocks(const Profile& profile, const Split& split);

// A model of Family::kMeasured.
Model measured_model(Profile profile);

// As TOML. Throws Error(kInvalidArgument) for a profile beyond the limits above, which could not be
// read again.
std::string to_toml(const Profile& profile);
// Reading throws Error(kBadConfig), naming the key, for missing, negative, infinite or absurd
// values and lists of different lengths; load_profile() also what read_file() throws.
Profile parse_profile(std::string_view toml, const std::string& source);
Profile load_profile(const std::string& path);

}  // namespace weft::plan
