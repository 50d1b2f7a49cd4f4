// ImageSet: labeled images in memory, as bytes. The 60,000 images of Fashion-MNIST take 47 MB
// instead of the 188 MB of float32.
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
  std::string name = "fashion-mnist";  // "fashion-mnist" or "shapes".
  // Folder of fashion-mnist. Empty: the folder of Debian's package dataset-fashion-mnist.
  std::string dir;
  std::uint64_t seed = 1;  // Seed of shapes.
};

// Loads one part of the named data set. Throws Error(kBadConfig) for an unknown name or a missing
// folder (the message says what to install or set), and Error(kCorrupt) for a damaged file.
ImageSet load_images(const SetOptions& options, Part part);

// Throws as load_images() if a file of the data set is not there. Reads nothing.
void check_image_files(const SetOptions& options);

// Mean and standard deviation of each channel's pixels, scaled to [0, 1], for AugmentOptions.
struct ChannelStats {
  std::vector<float> mean;
  std::vector<float> std;
};
ChannelStats channel_stats(const ImageSet& set);

}  // namespace weft::data
