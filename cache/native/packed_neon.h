/* The products of packed.h with NEON instructions. These multiply 4 signed numbers of 8 bits and add in 32 bits. A
vector has 4 inputs of 4 outputs. Weights need not be unpacked before. */

#pragma once
#include <arm_neon.h>

static INLINE float32x4_t halves(const void *from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }

/* Loads the real numbers of 4 columns and of the first or last 4 outputs. */
static INLINE int8x16_t load_quad(int kind, const void *block, int quad, int part) {
    if (kind == W8) return vld1q_s8(((const Block8 *)block)->numbers + 32 * quad + 16 * part);
    const Block5 *b5 = block; /* W4 begins like W5 */
    const Block6 *b6 = block;
    uint8x16_t w = vld1q_u8((kind == W6 ? b6->nibbles : b5->nibbles) + 32 * (quad % 4) + 16 * part), high;
    w = quad < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4);
    if (kind == W4) return vreinterpretq_s8_u8(w);
    if (kind == W5) high = vandq_u8(vshlq_u8(vld1q_u8(b5->high + 16 * part), vdupq_n_s8(4 - quad)), vdupq_n_u8(16));
    else high = vandq_u8(vshlq_u8(vld1q_u8(b6->high + quad / 4 * 32 + 16 * part), vdupq_n_s8(4 - 2 * (quad % 4))), vdupq_n_u8(48));
    return vreinterpretq_s8_u8(vsubq_u8(vorrq_u8(w, high), vdupq_n_u8(kind == W5 ? 16 : 32)));
}

#define EACH_PART _Pragma("GCC unroll 2") for (int part = 0; part < 2; part++)
#define EACH_ROW _Pragma("GCC unroll 4") for (int m = 0; m < rows; m++)

/* Adds every second one of 2 * `blocks` blocks times up to 4 rows of activations to 8 sums of each row. sums
   [rows, stride]. kind, rows: constants where this is inlined. */
static INLINE void multiply_8(int kind, const char *block, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    const int group = kind == W6 ? 4 : 8; /* quads with the same scale */
    float32x4_t acc[2][4];
    EACH_PART EACH_ROW acc[part][m] = vld1q_f32(sums + m * stride + 4 * part);
    for (size_t b = 0; b < blocks; b++, block += 2 * block_bytes(kind), x++)
#pragma GCC unroll 2
        for (int first = 0; first < QUADS; first += group) {
            int32x4_t whole[2][4];
            EACH_PART EACH_ROW whole[part][m] = vdupq_n_s32(0);
#pragma GCC unroll 8
            for (int quad = first; quad < first + group; quad++)
                EACH_PART {
                    int8x16_t w = load_quad(kind, block, quad, part);
                    EACH_ROW {
                        int32_t four;
                        memcpy(&four, x[m * blocks].numbers + 4 * quad, 4);
                        whole[part][m] = vdotq_s32(whole[part][m], w, vreinterpretq_s8_s32(vdupq_n_s32(four)));
                    }
                }
            EACH_PART {
                float32x4_t scale = halves(block + 16 * (first / 4) + 8 * part), low = halves(block + 16 + 8 * part);
                EACH_ROW {
                    acc[part][m] = vfmaq_f32(acc[part][m], vcvtq_f32_s32(whole[part][m]), vmulq_n_f32(scale, x[m * blocks].scale));
                    if (kind == W4 || kind == W5) acc[part][m] = vfmsq_f32(acc[part][m], low, vdupq_n_f32(x[m * blocks].sum));
                }
            }
        }
    EACH_PART EACH_ROW vst1q_f32(sums + m * stride + 4 * part, acc[part][m]);
}
#undef EACH_PART
#undef EACH_ROW

static INLINE void multiply_kind(int kind, const char *weights, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    for (int g = 0; g < 2; g++, weights += block_bytes(kind), sums += BLOCK_ROWS) {
        int m = 0;
#define ROWS(N) for (; m + N <= rows; m += N) multiply_8(kind, weights, x + m * blocks, blocks, N, sums + m * stride, stride)
        ROWS(4);
        ROWS(2);
        ROWS(1);
#undef ROWS
    }
}
