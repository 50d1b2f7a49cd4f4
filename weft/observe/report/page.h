// The style and the charts of weft's pages, for pages of one HTML file that opens without a
// network, in light and dark mode.
#pragma once

#include <string>
#include <string_view>

namespace weft::observe {

// Replaces the marks of a page, the first of each:
//   @STYLE@   the style sheet
//   @CHARTS@  JavaScript: element(), number(), ticks(), legendOf(), chart(), table(), `colors` and
//             `dashes`
//   @DATA@    `json`, escaped for a script element, so that no text in it can end the element
std::string fill_page(std::string_view page, std::string_view json);

}  // namespace weft::observe
