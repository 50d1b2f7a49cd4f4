#include "tests/chaos/internal/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "weft/base/error.h"

namespace weft::chaos::internal {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  WEFT_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
             "OpenSSL has no SHA-256");
}
Sha256::~Sha256() = default;

void Sha256::add(const void* bytes, std::size_t count) {
  WEFT_CHECK(EVP_DigestUpdate(state_->context, bytes, count) == 1, "SHA-256 failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  WEFT_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1, "SHA-256 failed");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace weft::chaos::internal
