// What every fuzz target uses. A target is one function over bytes, one_input(); libFuzzer calls it
// (`./dev fuzz`), or replay_main.cc where there is no clang.
//
// It throws nothing. It calls check() for what must hold whatever the bytes are; a violation, an
// error of another kind than the parser promises, more than 64 MiB on the heap (run.cc) or a
// sanitizer's finding ends the process with the input saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace weft::fuzz {

void one_input(const std::uint8_t* data, std::size_t size);

inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

// Runs the parser; true when it accepted. It may refuse by an Error of these codes, in one line,
// and by nothing else.
template <typename Body>
bool accepts(std::initializer_list<Errc> codes, const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    bool known = false;
    for (const Errc code : codes) known = known || error.code() == code;
    if (!known) std::fprintf(stderr, "fuzz: %s\n", error.what());
    check(known, "a parser refuses with the errors that its header names");
    check(std::string_view(error.what()).find('\n') == std::string_view::npos,
          "an error is one line");
  }
  return false;
}

// Takes an input apart. Where it ends there are zeros.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  // The next `size` bytes, or what is left.
  std::string_view take(std::size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  template <typename T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof(T));
    bytes.copy(reinterpret_cast<char*>(&value), bytes.size());
    return value;
  }
  template <typename Array>
  Array array() {
    Array value{};
    const std::string_view bytes = take(value.size());
    bytes.copy(reinterpret_cast<char*>(value.data()), bytes.size());
    return value;
  }

 private:
  std::string_view rest_;
};

}  // namespace weft::fuzz
