// Draws a form of parallelism: a card for each rank, with a grid for its part of the batch, of
// weights, gradients and optimizer state.
#pragma once

#include <string>

#include "tools/docs/internal/form_words.h"

namespace weft::docs::internal {

// A self-contained SVG, for light and dark backgrounds.
std::string form_svg(const Form& form);

}  // namespace weft::docs::internal
