#include "weft/base/text/numbers.h"

#include <clocale>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace weft {
namespace {

// The C locale in this thread, until the end of the scope.
class CLocale {
 public:
  CLocale() : before_(::uselocale(c())) {}
  ~CLocale() { ::uselocale(before_); }
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  static locale_t c() {
    static const locale_t kC = ::newlocale(LC_ALL_MASK, "C", nullptr);
    return kC;
  }

  const locale_t before_;
};

}  // namespace

std::string formatted(const char* format, ...) {
  const CLocale c;
  std::va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  char text[128];
  const auto length = static_cast<std::size_t>(std::vsnprintf(text, sizeof text, format, values));
  std::string result(text, length < sizeof text ? length : 0);
  if (length >= sizeof text) {
    result.resize(length);
    std::vsnprintf(result.data(), length + 1, format, again);
  }
  va_end(again);
  va_end(values);
  return result;
}

std::string shortened(double value) {
  if (std::isnan(value)) return "NaN";
  const std::string text = formatted("%.4g", value);
  if (text == "1" && value < 1) return "0.9999";
  if (text == "-1" && value > -1) return "-0.9999";
  return text;
}

double rounded(double value, int decimals) {
  if (std::abs(value) < 1) return parse_number<double>(shortened(value)).value();
  const double scale = std::pow(10, decimals);
  return std::round(value * scale) / scale;
}

}  // namespace weft
