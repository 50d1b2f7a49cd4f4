#include "weft/elastic/internal/part_source.h"

#include <algorithm>

namespace weft::elastic::internal {

PartSource::PartSource(const checkpoint::Reader& reader, std::string part)
    : reader_(reader), part_(std::move(part)) {
  const auto parts = reader.parts();
  if (std::find(parts.begin(), parts.end(), part_) != parts.end()) shapes_ = reader.shapes(part_);
}

void PartSource::check(const checkpoint::Slices& slices) const {
  for (const checkpoint::Slice& slice : slices) {
    const auto found = shapes_.find(slice.name);
    WEFT_REQUIRE(found != shapes_.end(),
                 "the saved state of \"" + part_ + "\" has no tensor \"" + slice.name + "\"");
    WEFT_REQUIRE(found->second == slice.shape,
                 "the saved \"" + slice.name + "\" of \"" + part_ + "\" has another shape");
  }
}

void PartSource::fill(const checkpoint::Slices& slices) const {
  check(slices);
  if (!slices.empty()) reader_.fill(part_, slices);
}

}  // namespace weft::elastic::internal
