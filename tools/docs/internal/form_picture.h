// A form of parallelism as a picture: a card a rank, a square for its part of each thing.
#pragma once

#include <string>

#include "tools/docs/internal/form_words.h"

namespace weft::docs::internal {

// A self-contained SVG, for light and dark backgrounds.
std::string form_svg(const Form& form);

}  // namespace weft::docs::internal
