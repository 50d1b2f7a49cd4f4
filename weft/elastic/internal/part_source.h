// The tensors of one part of a saved state.
#pragma once

#include <string>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/reader.h"

namespace weft::elastic::internal {

class PartSource final : public checkpoint::SliceSource {
 public:
  // `reader` outlives it. The part may be missing: it then has no tensors.
  PartSource(const checkpoint::Reader& reader, std::string part);

  bool has(const std::string& name) const override { return shapes_.contains(name); }
  void check(const checkpoint::Slices& slices) const override;
  void fill(const checkpoint::Slices& slices) const override;

 private:
  const checkpoint::Reader& reader_;
  const std::string part_;
  checkpoint::Reader::Shapes shapes_;
};

}  // namespace weft::elastic::internal
