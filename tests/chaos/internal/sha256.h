// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace weft::chaos::internal {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* bytes, std::size_t count);
  void add(std::string_view text) { add(text.data(), text.size()); }
  // The digest in hexadecimal. Call it once, last.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::chaos::internal
