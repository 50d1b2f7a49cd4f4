// Reads Hugging Face's weights as slices of a GPT that is divided over ranks.
#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/reader.h"
#include "weft/models/huggingface.h"
#include "weft/models/internal/huggingface_places.h"

namespace weft::models {
namespace {

using checkpoint::Slice;
using checkpoint::Slices;
using internal::Place;

class HuggingFaceSource : public checkpoint::SliceSource {
 public:
  HuggingFaceSource(const GptOptions& options, const std::vector<std::string>& paths)
      : reader_(checkpoint::Reader::of_files(paths)) {
    for (const Place& place : internal::places_of(options)) {
      places_[place.ours].push_back(place);
      places_[place.ours].back().theirs = internal::find(reader_.shapes("model"), place.theirs);
      const std::string& theirs = places_[place.ours].back().theirs;
      internal::require_floating(theirs, reader_.dtype("model", theirs));
      used_.insert(theirs);
    }
    for (const auto& [name, shape] : reader_.shapes("model")) {
      WEFT_REQUIRE(used_.contains(name) || internal::passed_over(name, options),
                   "Hugging Face weights: the model has no place for \"" + name +
                       "\"; do its options (layers, bias, tied) fit the file?");
    }
  }

  bool has(const std::string& name) const override { return places_.contains(name); }
  void check(const Slices& slices) const override { reader_.check(translated(slices)); }
  void fill(const Slices& slices) const override { reader_.fill(translated(slices)); }

 private:
  Slices translated(const Slices& slices) const {
    Slices all;
    for (const Slice& slice : slices) {
      const auto found = places_.find(slice.name);
      WEFT_REQUIRE(
          found != places_.end(),
          "Hugging Face weights: the files have no values for the model's \"" + slice.name + "\"");
      for (const Place& place : found->second) {
        if (auto theirs = translated(slice, place)) all.push_back(std::move(*theirs));
      }
    }
    return all;
  }

  // Returns the part of our slice that `place` holds, as a slice of the Hugging Face tensor; none
  // if the slice does not contain the expert of `place`. A slice that is only checked has no
  // tensor.
  static std::optional<Slice> translated(Slice slice, const Place& place) {
    const bool checks = !slice.tensor.defined();
    if (place.expert >= 0) {
      if (!checks) {
        const std::int64_t at = place.expert - slice.offset[0];
        if (at < 0 || at >= slice.tensor.size(0)) return std::nullopt;
        slice.tensor = slice.tensor.select(0, at);
        slice.offset.erase(slice.offset.begin());
      }
      slice.shape.erase(slice.shape.begin());
    }
    // q, k and v are concatenated along the outputs, our first dimension.
    if (place.third >= 0) {
      if (!checks) slice.offset[0] += place.third * slice.shape[0];
      slice.shape[0] *= 3;
    }
    if (place.transposed) {
      std::swap(slice.shape[0], slice.shape[1]);
      if (!checks) {
        std::swap(slice.offset[0], slice.offset[1]);
        slice.tensor = slice.tensor.t();
      }
    }
    slice.name = place.theirs;
    return slice;
  }

  checkpoint::Reader reader_;
  std::map<std::string, std::vector<Place>> places_;  // By our name: one, or one per expert.
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<checkpoint::SliceSource> huggingface_source(const GptOptions& options,
                                                            const std::vector<std::string>& paths) {
  return std::make_unique<HuggingFaceSource>(options, paths);
}

}  // namespace weft::models
