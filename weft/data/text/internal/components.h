// Parses the parts of tokenizer.json other than its model.
#pragma once

#include <vector>

#include "weft/data/text/internal/model.h"
#include "weft/data/text/internal/node.h"

namespace weft::data::text::internal {

struct PreTokenizer {
  std::vector<SplitStage> stages;
  bool byte_level = false;
};

// Each takes the whole document. Throws Error(kBadConfig), naming the component, for a component
// that is not supported.
std::vector<Normalizer> parse_normalizer(const Node& root);
PreTokenizer parse_pre_tokenizer(const Node& root);
Decoding parse_decoder(const Node& root);

}  // namespace weft::data::text::internal
