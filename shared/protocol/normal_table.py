"""The frozen table of 65,536 normal quantiles from which Gaussian directions are drawn.

Entry i is round(2048 · Φ⁻¹((i + ½) / 65,536)), half to even, so a 16-bit uniform becomes a normal
number with scale 2⁻¹¹. The table is antisymmetric. The module holds its upper half as a literal of
compressed differences between neighbours. The table's hash is part of every layout, because another
table would give other directions.
"""

import base64
import hashlib
import zlib

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import SamaraError

TABLE_SHA256 = "06c028f826eb57a7feaddfc1b1f141350b9cbfbfafce0ba7368dc97db6711ecd"

_UPPER_HALF_DIFFERENCES = (
    "c-rlf%Z}4P5JfA=5Qf+A1|c32Xe1=Wh6O8Dtl9Gkd<LJxFS0_y%FE-V?X>NFRCS-U-0rTrb?>cmMB3j%`hFoZX;g"
    "CSqe7Q_F;w_ppn?i2sGx!hDkZBh7pBi#aExOd(>>k8#TSMPuG+bn3SWz<&<S%yy+(DWg<s2l>5!T5rKq5SifI*0g"
    "sC$T+~O8(w98^*9(*Gv4ijE2du85yhXvmUWt4G*(_)>{S^1qYA>w>t;>4K(Uy<q174Gf0#7$i@pr@K9#@y@i$h=~"
    "*&_B*g(!^oCXlA7u&7|;$VrhycacFVPcflRZ=%HuFg*|VjIHo%$Otjo6Q((H~cZP%79MFL!R$Ni9uO6p1lx%yV&y"
    "tXIS+*k^I`o*nnr>js#aOxu%2wRa2@@nX6k`H)O%Epv6ci}HR)Y^JaaN`aI?9KlA8Q_PWxEdNR+!+npr%j16pwUI"
    "q%T6}_{*tXCoe4FSg6rdQx>aU-IBViYo_H+)N1dgR@ADgp$iyoDC%=izGLp1?zq*e4ja`rw5*`v(xOB*PS&1I9wz"
    ";&)3GHvvRtW~Ck1PIjogamJLTrO;WE9pPR4v3DU~($1+Er`JltfgFx#lF4W)-Sb%mB{?M(4mbt`K-`=FRrsj6kLS"
    "k=+4ZXKbIIUid-ja*S%3Yx04t7=q=p&8d_`WhY8;dwNu)aP}9&!`F(D&ycSqT({-&*fsWP+wofN_9RKJ(;+*X%R8"
    "FVyMrr(8!=qsjjyL_7qhy(CJXRvf*lSM&nk-!OX4DtE7iHJU(t!T&6q>S~6+!;ZftUQ!Bz%r)9OYYhsLp4u?yZ3s"
    "vD4jfo0V)qhV>IWIE~GZj6*F5D@8)pUekJRU06Ei5{2WFBs8G<@cK)(_#2nuZQrt@}w)83Gk9;~R|=8JG9F%|nI5"
    "jyui6OuLUk&C5-}&D-aq#%03ZhNFJjaPKjhvAKDt^HIOEZ)W&5{_c*sP<_$i%y4cDM#EapKrB6@=OW92?6|YvsXs"
    "FO9*XwI&hP&B?&<XAj!b|2ZbSETyZd(fcAxssuDfq;yH=i=mGitBe7pDV$rV|h<d5U~z5jiDKEEy;=L_fVe!6@6z"
    "Ip1dTSupM?>_szd)lsb=e<5W`@May<@Swt`*hdkZok~^+jZygwCirOw)?%^zFqeZ>p}BeHT%_OJ>0BEoAp?pY}Qk"
    "G)~x69LS8oORkL2p8+j}5<h^{5YxyXj<g<K{ukua4%MbY}zvQ?4k-ze9@gHr-A)5"
)


def _load() -> NDArray[np.int16]:
    differences = np.frombuffer(
        zlib.decompress(base64.b85decode(_UPPER_HALF_DIFFERENCES)), dtype="<i2"
    )
    upper = np.cumsum(differences, dtype=np.int16)
    table = np.concatenate([-upper[::-1], upper]).astype("<i2")
    if hashlib.sha256(table.tobytes()).hexdigest() != TABLE_SHA256:
        raise SamaraError(
            "the normal table in shared/protocol/normal_table.py is damaged; reinstall Samara"
        )
    table.setflags(write=False)
    return table


NORMAL_TABLE: NDArray[np.int16] = _load()
"""int16 [65,536], ascending; multiply by 2⁻¹¹ for a standard normal number."""
