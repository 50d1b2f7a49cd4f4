#include "weft/observe/report/page.h"

#include "weft/base/error.h"

namespace weft::observe {
namespace {

constexpr std::string_view kStyle =
#include "weft/observe/report/internal/style.inc"
    ;
constexpr std::string_view kCharts =
#include "weft/observe/report/internal/charts.inc"
    ;

void replace(std::string& page, std::string_view mark, std::string_view by) {
  const auto at = page.find(mark);
  WEFT_CHECK(at != std::string::npos, "a page lacks " + std::string(mark));
  page.replace(at, mark.size(), by);
}

std::string escaped(std::string_view json) {
  std::string safe;
  for (const char c : json) safe += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return safe;
}

}  // namespace

std::string fill_page(std::string_view page, std::string_view json) {
  std::string filled(page);
  replace(filled, "@STYLE@", kStyle);
  replace(filled, "@CHARTS@", kCharts);
  replace(filled, "@DATA@", escaped(json));  // last: the data may contain a mark
  return filled;
}

}  // namespace weft::observe
