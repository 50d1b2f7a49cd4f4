// Labeled images in memory: bytes until a batch is made of them, so that 60,000 Fashion-MNIST
// images take 47 MB, not 188.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::data {

struct ImageSet {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  std::vector<std::uint8_t> pixels;  // [size, channels, height, width]
  std::vector<std::uint8_t> labels;  // [size], each below num_classes

  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t image_bytes() const { return channels * height * width; }
};

enum class Part { kTrain, kTest };

struct SetOptions {
  std::string name = "fashion-mnist";  // or "shapes"
  std::string dir;         // of fashion-mnist; empty: where Debian's dataset-fashion-mnist puts it
  std::uint64_t seed = 1;  // of shapes
};

// One part of the named data set. Throws Error(kBadConfig) for an unknown name or a missing folder
// (saying what to install or set), Error(kCorrupt) for a file that is not what its name says.
ImageSet load_images(const SetOptions& options, Part part);

// Mean and standard deviation of each channel's pixels, in [0, 1]: what normalization wants.
struct ChannelStats {
  std::vector<float> mean;
  std::vector<float> std;
};
ChannelStats channel_stats(const ImageSet& set);

}  // namespace weft::data
