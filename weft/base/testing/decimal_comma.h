// For the tests of any folder: a locale with a decimal comma, for one test. Not installed.
#pragma once

#include <algorithm>
#include <clocale>
#include <cstddef>
#include <locale>
#include <stdexcept>
#include <string>

#include "weft/base/file.h"
#include "weft/base/testing/variables.h"

namespace weft {

// Sets a locale like de_DE: printf() and std::to_string() write 1234.5 as "1234,5", streams as
// "1.234,5". Restores the former locale at the end. No other thread may read the environment
// meanwhile. The machine need not have such a locale: a file of C.UTF-8 is changed.
class DecimalComma {
 public:
  DecimalComma() {
    constexpr std::size_t kMaxBytes = 4096;
    std::string numbers = read_file("/usr/lib/locale/C.utf8/LC_NUMERIC", kMaxBytes);
    std::replace(numbers.begin(), numbers.end(), '.', ',');
    make_directory(folder_ / "comma");
    write_file_atomic(folder_ / "comma/LC_NUMERIC", numbers);
    if (std::setlocale(LC_NUMERIC, "comma") == nullptr)
      throw std::runtime_error("the C library does not read the test's locale");
    streams_ = std::locale::global(std::locale(std::locale::classic(), new Numbers));
  }
  ~DecimalComma() {
    std::locale::global(streams_);
    std::setlocale(LC_NUMERIC, c_.c_str());
  }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

 private:
  struct Numbers : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  const std::string c_ = std::setlocale(LC_NUMERIC, nullptr);
  TempDir folder_;
  TestVariables path_{"LOCPATH", folder_.path()};
  std::locale streams_;
};

}  // namespace weft
